"""The sink for Delta: its partitions, the files of rows that tasks write, and the Delta commits that publish them."""
