"""The verifier shares no code with what it judges: importing all of it brings in none of ours."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import importlib, pkgutil, sys
import verifier

names = ["verifier", *(each.name for each in pkgutil.walk_packages(verifier.__path__, "verifier."))]
for name in names:
    importlib.import_module(name)
print(*names)
print(*(name for name in sys.modules if name.split(".")[0] in ("transactional", "spouts", "state", "sinks")))
"""


def test_every_module_of_it_is_imported_without_any_other_of_ours() -> None:
    command = [sys.executable, "-c", PROGRAM]
    names, ours = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout.splitlines()
    assert {"verifier", "verifier.checker", "verifier.evidence.storage"} < set(names.split())
    assert ours == ""
