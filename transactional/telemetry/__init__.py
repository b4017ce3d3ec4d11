"""What a run reports to those who operate it: logs, metrics, health, traces. Each is an observer of the driver."""
