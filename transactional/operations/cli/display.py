"""`Display`, for programs that run a topology themselves: what the command line prints of a run, as an observer."""

from transactional.operations.cli.output.display import Display

__all__ = ["Display"]
