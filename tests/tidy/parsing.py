"""Sources as syntax trees, each parsed and walked once for all tests that look at it."""

from __future__ import annotations

import ast
import functools
import gc


@functools.cache
def parsed(source: str) -> ast.Module:
    """The tree of a source. It is shared: look at it only. It stays, so it is never looked through for garbage, which
    would take as long as parsing does."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        gc.freeze()
        if collects:
            gc.enable()


Looked = ast.FunctionDef | ast.AsyncFunctionDef | ast.Call | ast.Import | ast.ImportFrom
_WITHOUT = (ast.Name, ast.Constant, ast.expr_context, ast.operator, ast.cmpop, ast.boolop, ast.unaryop)
"""Most of all nodes, in which there are no others."""


@functools.cache
def nodes_of(source: str) -> list[Looked]:
    """The functions, calls and imports of a source, from the outside to the inside, as `ast.walk` has them."""
    found, waiting = list[Looked](), list[ast.AST]([parsed(source)])
    for node in waiting:  # which grows meanwhile
        if isinstance(node, Looked):
            found.append(node)
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                waiting += [each for each in value if isinstance(each, ast.AST) and not isinstance(each, _WITHOUT)]
            elif isinstance(value, ast.AST) and not isinstance(value, _WITHOUT):
                waiting.append(value)
    return found


def lines_for_types(source: str) -> set[int]:
    """The lines of a source that are for type checkers only."""
    guarded = [
        node for node in parsed(source).body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    ]
    return {line for node in guarded for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
