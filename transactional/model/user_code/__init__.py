"""The boundary with user code: the tuples that it receives, and its failures.

`tuples` has the tuples that bolts receive, and `failures` what an exception in user code becomes. `picklable` checks
whether the user's objects can be sent to other processes, `overrides` whether their methods can be called, and
`stored_values` whether what they return can be stored. `storm_names` gives hints for names from Storm and Spark.
"""
