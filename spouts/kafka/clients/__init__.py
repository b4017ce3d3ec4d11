"""The clients of a Kafka cluster: how it is reached, and the consumers that tasks share."""
