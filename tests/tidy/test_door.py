"""What `import transactional` loads: what topologies are declared with, and nothing of what runs them.

Every task of every Spark worker imports it, and so does a program that only declares a topology.
"""

from __future__ import annotations

import ast

from tests.tidy.parsing import parsed
from tests.tidy.test_layering import FILES, room_of

RUNS_THEM = {
    *("transactional.engine", "transactional.engine.history", "transactional.execution", "transactional.phases"),
    *("transactional.console", "transactional.doctor", "transactional.telemetry", "transactional.trident"),
}


def imported_at_once(module: str) -> set[str]:
    """Our modules that an import of this one imports: those named outside of functions, and their packages."""
    found = set[str]()
    for node in parsed(FILES[module].read_text("utf-8")).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = str(node.module)
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    parts = [name.split(".") for name in found]
    return {name for each in parts for n in range(1, len(each) + 1) if (name := ".".join(each[:n])) in FILES}


def loaded_with(module: str) -> set[str]:
    """Every module of ours that is loaded with one."""
    seen, ahead = {module}, [module]
    while ahead:
        new = imported_at_once(ahead.pop()) - seen
        seen |= new
        ahead += new
    return seen


def test_the_door_loads_nothing_of_what_runs_a_topology() -> None:
    loaded = loaded_with("transactional")
    assert {"transactional.running", "transactional.topology.builder"} < loaded
    assert sorted(name for name in loaded if room_of(name) in RUNS_THEM) == []


def test_what_is_loaded_is_followed() -> None:
    assert "transactional.engine.driver" in loaded_with("transactional.commands.main")
