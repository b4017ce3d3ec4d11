"""What is wrong between store, tables and source, and what can be done about it."""
