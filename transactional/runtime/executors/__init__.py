"""Where processing phases run: in this process, in worker processes, on Spark, or where it is quickest."""
