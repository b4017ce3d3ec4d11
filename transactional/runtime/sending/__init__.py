"""What is sent to other processes, and to how many: for Spark's executors, and for workers beside the driver."""
