"""Reading a topology's states from outside: questions, and tables as of a transaction."""
