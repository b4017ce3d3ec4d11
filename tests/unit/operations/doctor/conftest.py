"""A topology to be hurt and examined, where a file has none of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.operations.doctor.patients import Patient


@pytest.fixture(scope="session")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Patient:
    """A topology that has run to its end, which each test copies."""
    patient = Patient(tmp_path_factory.mktemp("healthy"))
    patient.run()
    return patient


@pytest.fixture
def patient(healthy: Patient, tmp_path: Path) -> Patient:
    return healthy.copied(tmp_path / "patient")
