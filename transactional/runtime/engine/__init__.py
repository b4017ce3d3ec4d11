"""The shell around the pure coordinator: the driver, its lease and fences, its threads, the clock, and rewinds.

`driver` passes events to the coordinator and performs its actions, `leadership` holds the lease and writes to the
store, and `runner` runs the phases in threads. Nothing here decides about a transaction: the coordinator in
`core/machine` does.
"""
