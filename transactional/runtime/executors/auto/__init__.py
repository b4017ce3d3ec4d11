"""Changing gear: small batches in worker processes, large ones on Spark, chosen for each transaction."""
