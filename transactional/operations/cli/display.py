"""`Display`, for programs that run a topology themselves: an observer that prints a run as the command line does."""

from transactional.operations.cli.output.display import Display

__all__ = ["Display"]
