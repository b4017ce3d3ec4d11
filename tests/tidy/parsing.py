"""Sources as syntax trees, each parsed once for all tests that look at it."""

from __future__ import annotations

import ast
import functools


@functools.cache
def parsed(source: str) -> ast.Module:
    """The tree of a source. It is shared: look at it only."""
    return ast.parse(source)
