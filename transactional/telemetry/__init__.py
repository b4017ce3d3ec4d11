"""What a run reports to those who operate it: logs, metrics and health, traces. All of them are observers of the driver."""
