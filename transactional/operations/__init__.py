"""The tools to operate a topology: the command line, the console, telemetry, the doctor and queries."""
