"""Running bolts: tasks of the processing phase, what they send to the driver, and the commit phase."""
