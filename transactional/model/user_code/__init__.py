"""What users' own code meets: tuples, names of Storm, what can be sent to other processes, and how a bolt fails."""
