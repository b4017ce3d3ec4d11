"""What people operate a topology with: the command line, the console, telemetry, the doctor, queries."""
