"""Several spouts as one, whose transactions take a batch of each. Every spout has its own stream."""
