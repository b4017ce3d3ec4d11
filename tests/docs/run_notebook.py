"""Executes a notebook as Jupyter does: `python -m tests.docs.run_notebook FILE`; with `--write` it stores the outputs.

A notebook is JSON, its code cells are Python, and what a cell yields is what it prints, what its last expression shows
of itself, and its error: IPython's protocols are `_repr_mimebundle_` and `_render_traceback_`. To do that here takes a
tenth of a second and no package. nbclient with ipykernel would start a process for each notebook, which takes two
seconds, and bring thirty packages into the lock file, to test what is Jupyter's own.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import linecache
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def executed(notebook: Json) -> Json:
    """The notebook with the outputs that its cells yield, in the current folder."""
    names: Json = {"__name__": "__main__"}
    cells, number = list[Json](), 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            number += 1
            cell = {**cell, "execution_count": number, "outputs": outputs_of("".join(cell["source"]), number, names)}
        cells.append(cell)
    return {**notebook, "cells": cells}


def outputs_of(source: str, number: int, names: Json) -> list[Json]:
    """What a cell yields. Errors without a rendering of their own are raised: they are not meant."""
    printed, outputs = io.StringIO(), list[Json]()
    try:
        with contextlib.redirect_stdout(printed):
            shown = value_of(source, f"Cell In[{number}]", names)
        if shown is not None:
            data = {kind: lines(text) for kind, text in sorted(view_of(shown).items())}
            outputs.append({"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
    except Exception as error:
        if not hasattr(error, "_render_traceback_"):
            raise
        name, text = type(error).__name__, in_cells(error)._render_traceback_()
        outputs.append({"ename": name, "evalue": str(error), "output_type": "error", "traceback": text})
    if printed.getvalue():
        outputs.insert(0, {"name": "stdout", "output_type": "stream", "text": lines(printed.getvalue())})
    return outputs


def in_cells(error: Any) -> Any:
    """An error as IPython passes it on: its traceback begins in a cell."""
    while not error.__traceback__.tb_frame.f_code.co_filename.startswith("Cell In"):
        error.__traceback__ = error.__traceback__.tb_next
    return error


def value_of(source: str, file: str, names: Json) -> Any:
    """The value of the last line of a cell, if that is an expression."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    tree = ast.parse(source, file)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, file, "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), file, "eval"), names)  # type: ignore[attr-defined]


def view_of(value: Any) -> Mapping[str, str]:
    """What IPython makes of a value."""
    if hasattr(value, "_repr_mimebundle_"):
        view: Mapping[str, str] = value._repr_mimebundle_(include=None, exclude=None)
        return view
    return {"text/plain": repr(value)}


def lines(text: str) -> list[str]:
    """A text as notebooks store it."""
    return text.splitlines(keepends=True)


def written(notebook: Json) -> str:
    """The file of a notebook."""
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def main() -> None:
    """The command line."""
    path, *options = sys.argv[1:]
    sys.path.insert(0, "")
    stored = Path(path).read_text("utf-8")
    yielded = written(executed(json.loads(stored)))
    if options == ["--write"]:
        Path(path).write_text(yielded, "utf-8")
    elif yielded != stored:
        raise SystemExit(f"{path} stores other outputs than its cells yield; rewrite it with --write")


if __name__ == "__main__":
    main()
