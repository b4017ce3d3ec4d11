"""`pytest tests/scenarios --rewrite` writes the transcripts anew; what changed is then read as a diff."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the transcripts of tests/scenarios anew")
