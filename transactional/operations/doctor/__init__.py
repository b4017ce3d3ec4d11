"""Finds contradictions between store, tables and source, and repairs those that can be repaired safely."""
