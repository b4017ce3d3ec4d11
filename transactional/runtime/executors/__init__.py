"""The executors of processing phases and steps: the driver's process, worker processes, Spark, or the quickest of
them."""
