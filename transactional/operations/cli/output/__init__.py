"""The output of the command line: live lines, tables, JSON, and the log of a run."""
