"""What `import transactional`, its names and the command line load: nothing that they don't need.

Every task of every Spark worker imports the package, and so does a program that only declares a topology; who asks for
help, or misspells a command, does not wait for Arrow.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys

import transactional
from tests.tidy.parsing import parsed
from tests.tidy.rooms import HOMES
from tests.tidy.test_layering import FILES, room_of

RUNS_THEM = {
    *(
        "transactional.runtime.engine",
        "transactional.runtime.engine.history",
        "transactional.runtime.tasks",
        "transactional.runtime.processing",
    ),
    *(
        "transactional.operations.console",
        "transactional.operations.doctor",
        "transactional.operations.telemetry",
        "transactional.topology.streams",
    ),
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


def homes() -> dict[str, str]:
    """Name → module, as type checkers see what the door imports."""
    [guarded] = (node for node in parsed(FILES["transactional"].read_text("utf-8")).body if isinstance(node, ast.If))
    imports = [node for node in guarded.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def test_each_name_of_the_door_is_what_type_checkers_see() -> None:
    assert sorted(homes()) == transactional.__all__
    for name, module in homes().items():
        assert getattr(transactional, name) is getattr(sys.modules[module], name)
    assert set(transactional.__all__) < set(dir(transactional))


def test_a_topology_is_declared_with_nothing_of_what_runs_it() -> None:
    modules = {
        module for name, module in homes().items() if name not in ("RunSummary", "TopologyDriver", "TopologyRun")
    }
    loaded = {name for module in modules for name in loaded_with(module)}
    assert {"transactional.operations.launch.running", "transactional.topology.builder"} < loaded
    assert sorted(name for name in loaded if room_of(name) in RUNS_THEM) == []


def test_what_is_loaded_is_followed() -> None:
    assert "transactional.runtime.engine.driver" in loaded_with("transactional.operations.cli.running")


def test_the_package_and_the_command_line_load_what_they_need_alone() -> None:
    """As a new process shows it: what is loaded after the import, and after `--help`."""
    program = (
        "import json, sys, transactional; package = list(sys.modules)\n"
        "from transactional.operations.cli.main import app; app(['--help'], standalone_mode=False)\n"
        "sys.stderr.write(json.dumps([package, list(sys.modules)]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=True)
    package, help_text = (set(names) for names in json.loads(done.stderr))
    assert {name for name in package if name.startswith("transactional")} == {"transactional"}
    assert {name.partition(".")[0] for name in help_text} & set(HOMES) == {"rich", "typer"}
    light = {
        "transactional.operations.console.needs",
        "transactional.runtime.engine.clock",
        "transactional.operations.telemetry.log_format",
    }
    assert {name for name in help_text & FILES.keys() - RUNS_THEM if room_of(name) in RUNS_THEM} == light
