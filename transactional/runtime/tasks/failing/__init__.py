"""How tasks fail: errors of user code, the tuples at fault, and records that the source has lost."""
