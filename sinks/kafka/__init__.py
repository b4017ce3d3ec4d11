"""The sink for Kafka: the form of its records, its transactions, and the control topic with its positions."""
