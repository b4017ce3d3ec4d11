"""Reading of a state's table: rows as of a transaction, look-ups by key, views, and their caches."""
