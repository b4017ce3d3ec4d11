"""Tools that know nothing of topologies: threads, syncing to disk, medians, tracebacks, redaction of secrets."""
