"""The commit phase of a transaction: components finish one after the other, strictly in the order of transactions.

`committing` runs the phase, `commit_steps` a step of it, on the driver or as a job; `bolt_steps` and `update_steps`
have the kinds of steps, and `executor_choice` chooses where a step runs. Nothing here depends on Spark.
"""
