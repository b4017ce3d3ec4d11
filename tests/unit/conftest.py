"""Fixtures that several modules of these tests use."""

from tests.unit.commands import command, module
from tests.unit.runner_bench import bench

__all__ = ["bench", "command", "module"]
