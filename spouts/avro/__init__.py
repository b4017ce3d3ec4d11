"""Avro records to Arrow columns, thousands at a time, with numpy."""
