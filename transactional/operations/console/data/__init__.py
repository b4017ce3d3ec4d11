"""The contents of pages: read from the store, and computed from what was read."""
