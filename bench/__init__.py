"""Benchmarks: the same work done by transactional and by its peers, side by side; `python -m bench`."""
