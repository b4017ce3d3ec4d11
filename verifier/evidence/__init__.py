"""What the checker reads, with no code of the others: logs of tables, databases, the store; and what it reports."""
