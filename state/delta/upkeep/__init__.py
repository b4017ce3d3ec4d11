"""The maintenance of a state's table between two transactions: compactions, checkpoints, clean-up."""
