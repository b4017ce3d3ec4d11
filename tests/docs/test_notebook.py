"""The notebooks store what their cells yield."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.docs.run_notebook import executed, outputs_of, written

NOTEBOOKS = sorted((*ROOT.glob("examples/*.ipynb"), *ROOT.glob("docs/**/*.ipynb")))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_stores_what_its_cells_yield(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m tests.docs.run_notebook FILE --write`, in an empty folder, stores it anew."""
    monkeypatch.chdir(tmp_path)
    stored = path.read_text("utf-8")
    assert written(executed(json.loads(stored))) == stored


def test_there_is_one() -> None:
    assert ROOT / "examples/notebook.ipynb" in NOTEBOOKS


def test_what_a_cell_yields() -> None:
    [printed, shown] = outputs_of("print(1)\nNone\n[2]", 3, {})
    assert printed == {"name": "stdout", "output_type": "stream", "text": ["1\n"]}
    assert (shown["execution_count"], shown["data"]) == (3, {"text/plain": ["[2]"]})
    assert outputs_of("a = 1", 4, {}) == []


def test_an_error_that_nobody_means_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        outputs_of("1 / 0", 1, {})
