"""Threads, syncing to disk, medians, texts without secrets: what knows nothing of topologies."""
