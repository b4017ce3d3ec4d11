"""Core reliability, Storm's classic API: topologies that process each message at least once or at most once."""
