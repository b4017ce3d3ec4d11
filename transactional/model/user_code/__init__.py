"""What users' own code works with: tuples, names of Storm, what can be sent to processes, and how a bolt fails."""
