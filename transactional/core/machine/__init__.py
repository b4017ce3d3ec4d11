"""The pure machine: the coordinator, its protocol, and its invariants."""
