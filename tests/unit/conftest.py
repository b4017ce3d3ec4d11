"""Fixtures that several modules of these tests use."""

from tests.unit.commands import command, module

__all__ = ["command", "module"]
