"""States in Delta tables."""
