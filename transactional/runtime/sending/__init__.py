"""Sends code to other processes: a user's modules by value, and the number of tasks or processes that a batch gets."""
