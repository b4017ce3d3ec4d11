"""The processing phase as a whole: what a task of an attempt does, and what the driver does with the items of all
tasks.

`tasks` reads the ranges of the batch and runs bolts by the loop in `runtime/tasks`, `staging` writes large items to
files, and `gathering` checks and combines the items on the driver. Nothing here knows which executor runs the tasks.
"""
