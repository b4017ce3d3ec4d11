"""Kafka as a source."""
