"""What a run reports to those who operate it: logs, metrics, health, traces. Each is an observer of the driver.

Not for import by users: the doors are `transactional run` with `--log` and `--metrics`, `run_topology(metrics=…)`, the
logger `transactional.run`, and OpenTelemetry's environment variables.
"""
