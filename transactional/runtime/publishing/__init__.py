"""Publishing what sinks have to publish: relays, their settling at a take-over, and payloads."""
