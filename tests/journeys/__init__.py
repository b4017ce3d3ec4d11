"""Journeys: a topology over real servers, and all that an operator does to it, one after the other on the same store
and the same tables. What each mechanism does alone has tests elsewhere; here they meet.

A journey is a table of steps in a `test_` module, run in their order. To give it a row, write a function that acts on
the `Journey`, changes its `plain` model as the step has to change the tables, and stands with a name in `STEPS`. After
each step all tables are compared with the model, and the doctor and `verify` find nothing.
"""
