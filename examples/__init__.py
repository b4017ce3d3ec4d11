"""Small topologies to start from; each can be run by `python -m examples.NAME`."""
