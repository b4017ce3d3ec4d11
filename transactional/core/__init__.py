"""What is decided, and what is promised: the pure coordinator, the ports of spouts, states and executors, the store."""
