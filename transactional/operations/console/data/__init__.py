"""What pages show: read from the store, reported by the run beside the console, and in figures."""
