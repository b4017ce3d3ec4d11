"""The executor of `processing="auto"`: workers for small batches, Spark for large ones, chosen for each transaction."""
