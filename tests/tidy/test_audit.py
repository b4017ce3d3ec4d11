"""`make audit` finds what differs between pyproject.toml, the lock and what is installed; this lock is right."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
HASH = f"--hash=sha256:{'0' * 64}"


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    """tools/audit.py, which is no package's."""
    spec = importlib.util.spec_from_file_location("audit", ROOT / "tools" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_lock_pins_and_hashes_all_that_is_requested(audit: ModuleType) -> None:
    pinned, wrong = audit.locked((ROOT / "requirements.lock").read_text())
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert [*wrong, *audit.asked_for(pyproject, pinned)] == []
    assert len(pinned) > 30


def test_what_running_takes_is_a_part_of_the_lock_of_its_own() -> None:
    """`make run` installs it, and what sets up and builds; the tests and the extras are for `make test`."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    runs, _, rest = (ROOT / "requirements.lock").read_text().partition("\n# To test")
    in_runs, in_rest = ({*re.findall(r"^([\w.-]+)==", part, re.MULTILINE)} for part in (runs, rest))
    declared = [*pyproject["project"]["dependencies"], *pyproject["dependency-groups"]["build"]]
    assert {canonicalize_name(Requirement(each).name) for each in declared} <= in_runs
    assert {"pytest", "mypy", "starlette", "psycopg"} <= in_rest
    assert in_runs & in_rest == set()


def test_what_is_not_pinned_or_has_no_hash_is_reported(audit: ModuleType) -> None:
    text = f"# made\na==1 \\\n    {HASH}\nb>=2 \\\n    {HASH}\nc==3\nd==4 ; sys_platform == 'none' \\\n    {HASH}\n"
    pinned, wrong = audit.locked(text)
    assert pinned == {"a": "1"}
    assert [line.split("lock ")[1] for line in wrong] == ["does not pin b>=2 to one version", "has no hash for c 3"]


def test_what_does_not_fit_is_reported(audit: ModuleType) -> None:
    project = {"dependencies": ["a>=2"], "optional-dependencies": {"dev": ["b[x]==1", "transactional-topologies[dev]"]}}
    told = list(audit.asked_for({"project": project, "dependency-groups": {"build": ["c"]}}, {"a": "1"}))
    assert [line.split(", and ")[0] for line in told] == [
        "pyproject.toml requires a>=2",
        "pyproject.toml requires b[x]==1",
        "pyproject.toml requires c",
    ]


def test_what_is_installed_and_not_pinned_is_reported(audit: ModuleType) -> None:
    here = list(audit.installed({"pytest": "0.1"}))
    assert any(line.startswith("pytest ") and "pins 0.1" in line for line in here)
    assert any(line.startswith("hypothesis ") and "does not know it" in line for line in here)


@pytest.mark.parametrize("folder", ["tests/vendor", "transactional/operations/console/static/vendor"])
def test_what_others_wrote_is_as_it_was_taken_over(folder: str) -> None:
    lines = (ROOT / folder / "vendor.lock").read_text("utf-8").splitlines()
    pinned = {name: checksum for checksum, name in (line.split() for line in lines if not line.startswith("#"))}
    there = {path.name for path in (ROOT / folder).iterdir()} - {"vendor.lock"}
    assert set(pinned) == there
    assert {name: hashlib.sha256((ROOT / folder / name).read_bytes()).hexdigest() for name in there} == pinned
