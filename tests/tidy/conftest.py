"""pytest within pytest, under the rules for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """An empty folder with the rules for all tests, and pytest in this process: another one would take a second."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text())
    markers = "\n".join(f"    {name}: {name}" for name in ("kafka", "long", "postgres", "redis", "sampled", "spark"))
    pytester.makeini(
        f"[pytest]\naddopts = --import-mode=importlib -p no:cacheprovider -p no:faulthandler\nmarkers =\n{markers}"
    )
    return pytester
