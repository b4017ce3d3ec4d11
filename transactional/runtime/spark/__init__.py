"""The Spark session and its jobs, for executors and for states: what of PySpark is used, and the jars."""
