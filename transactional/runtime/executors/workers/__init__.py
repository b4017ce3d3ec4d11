"""The executor that runs processing phases and steps in worker processes of the driver, without Spark."""
