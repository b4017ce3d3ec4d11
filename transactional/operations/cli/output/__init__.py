"""What the command line prints: live lines, tables, JSON, and the log of a run."""
