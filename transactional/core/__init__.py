"""The pure machine: the coordinator, the protocol that it speaks, and what must hold of it."""
