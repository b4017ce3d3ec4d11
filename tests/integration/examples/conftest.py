"""Examples run as programs, in the process of the tests: a start of Python or Spark costs more than most of them."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Example = Callable[..., list[str]]


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Example:
    """Run `python -m examples.NAME` with arguments in the test's folder, and return the lines that it prints."""

    def run(name: str, *arguments: str) -> list[str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        monkeypatch.delitem(sys.modules, f"examples.{name}", raising=False)
        runpy.run_module(f"examples.{name}", run_name="__main__", alter_sys=True)
        return capsys.readouterr().out.splitlines()

    return run
