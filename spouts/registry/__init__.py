"""Schemas of records in a registry that speaks Confluent's API: the client, and the ids that records carry."""
