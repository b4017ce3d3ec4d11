"""Runs in a thread of this process: the handle of one, and how it is doing."""
