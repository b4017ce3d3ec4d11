"""The coordinator's store in a SQL database."""
