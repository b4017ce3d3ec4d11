"""Processing phases as Spark jobs."""
