"""How a bolt is run, in both phases: its operator, its collector, its view of a state, and the loop of a task.

A task creates an operator for each of its bolts (`operator_factory`), feeds them (`task_loop`), and collects their
output (`emitting`), which `tuple_routing` distributes over the tasks of the next bolts. `items` has what tasks send.
Nothing here depends on the phase: `processing` has the tasks of the processing phase, `commit` those of the commit
phase, and `executors` decides where they run.
"""
