"""What happens while a topology runs: the driver, the tasks of both phases, and where they are executed."""
