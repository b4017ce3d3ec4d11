"""The commit phase of a transaction: strictly in order, step by step. Nothing of Spark is here."""
