"""SQLite and PostgreSQL, as the coordinator's store and the states in SQL use them."""
