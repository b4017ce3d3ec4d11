"""The executor that runs processing phases and steps as Spark jobs, and the checks of a Spark session and its
executors."""
