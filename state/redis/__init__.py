"""States in Redis."""
