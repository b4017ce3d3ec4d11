"""Simulated crashes are not logged."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.simulation.sweep import be_quiet


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Nothing of a simulation is logged."""
    be_quiet()
    yield
    logging.disable(logging.NOTSET)
