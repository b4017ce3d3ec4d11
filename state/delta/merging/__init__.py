"""A MERGE of a Delta table in memory: of a small table as a whole, of a larger one file by file."""
