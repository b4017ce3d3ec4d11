"""The shell around the coordinator: leases and fences, threads, the clock, the journal."""
