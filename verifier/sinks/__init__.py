"""Checks of what sinks have published."""
