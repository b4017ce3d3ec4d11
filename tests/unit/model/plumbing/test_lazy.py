"""Packages whose names are imported when they are first used."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

PACKAGES = ("sinks", "spouts", "state", "transactional")
# What a worker process of a topology over memory must not have to import: half a second of its start.
OTHERS = {"sqlalchemy", "deltalake", "confluent_kafka"}
IMPORTED = f"import sys, state.memory, spouts.memory; print(*{OTHERS} & {{*sys.modules}})"


@pytest.mark.parametrize("package", PACKAGES)
def test_each_public_name_is_there_and_no_other(package: str) -> None:
    module = import_module(package)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
    assert {*module.__all__} <= {*dir(module)}
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Unknown'"):
        _ = module.Unknown


def test_a_state_and_a_spout_import_no_library_of_the_others() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
