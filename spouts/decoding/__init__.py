"""Translators that decode record values: what cannot be read, and what becomes of it; JSON; Avro."""
