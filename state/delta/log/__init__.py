"""The log of a Delta table: its entries and checkpoints, and the version that follows from them."""
