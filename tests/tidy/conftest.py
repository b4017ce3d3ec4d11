"""pytest within pytest, under the rules for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """An empty folder with the rules for all tests, and pytest in this process: another one would take a second.

    Inner tests have no store, so none of them waits until SQLAlchemy is imported.
    """
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    rules = (ROOT / "tests" / "conftest.py").read_text().splitlines()
    pytester.makeconftest("\n".join(line for line in rules if "share_statements" not in line))
    markers = "\n".join(f"    {name}: {name}" for name in ("kafka", "long", "postgres", "redis", "sampled", "spark"))
    pytester.makeini(
        f"[pytest]\naddopts = --import-mode=importlib -p no:cacheprovider -p no:faulthandler\nmarkers =\n{markers}"
    )
    return pytester
