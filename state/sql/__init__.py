"""States in SQL databases."""
