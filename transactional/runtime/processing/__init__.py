"""The two phases of a transaction: its tasks and what they send, and the commit phase. Nothing of Spark is here."""
