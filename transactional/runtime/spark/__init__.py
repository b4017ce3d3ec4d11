"""The Spark session and its jobs, for executors and states: the session, the jars, and PySpark's private names."""
