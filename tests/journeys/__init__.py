"""Journeys: a topology over real servers, and all that an operator does to it, one after the other on the same store
and the same tables. What each mechanism does alone has tests elsewhere; here they meet.

A journey is a table of steps, run in their order: functions that act on the `Journey`, and change its `plain` model as
the step has to change the tables. After each step that writes, all tables are compared with the model, and the doctor
and `verify` find nothing.

`test_sales` starts programs, and has a broker of its own. `test_matrix` and `test_queue` call commands in this process:
`matrix` says which of them work with which source and which kind of state, `sources` and `sales` are these, and `steps`
has a step for each command. A command or a source that is new gets its row in `matrix`, and a step or a `Source`.
"""
