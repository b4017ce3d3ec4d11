"""The running topology: the driver, the tasks of both phases, and the executors that run them."""
