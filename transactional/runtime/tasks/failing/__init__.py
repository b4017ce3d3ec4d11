"""Failures of tasks: the tuples at fault, and records that the source has lost."""
