"""The log layout: a Delta table of segments, one or more for each transaction, and of what they were compacted to."""
