"""Processing phases in worker processes of the driver, without Spark."""
