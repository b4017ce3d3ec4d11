"""The kinds of bolt that a user declares."""
