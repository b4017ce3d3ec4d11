"""The files of deploy/ for supervisors and containers: linted, and in agreement with the command line they call."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from transactional.model.errors import LOOK, TRY_AGAIN
from transactional.model.names import DISTRIBUTION
from transactional.operations.cli.main import app

ROOT = Path(__file__).parents[2]
UNIT, DOCKERFILE = ROOT / "deploy/transactional@.service", ROOT / "deploy/Dockerfile"
PROGRAM = "/opt/transactional/bin/transactional"


def settings(text: str) -> dict[str, list[str]]:
    """Every setting of a unit, as often as it is there."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^([A-Z]\w*)=(.*)$", text, re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


def linted(text: str) -> subprocess.CompletedProcess[str]:
    """What hadolint says of a Dockerfile."""
    program = Path(sys.executable).parent / "hadolint"
    return subprocess.run([str(program), "-"], input=text, capture_output=True, text=True, check=False, timeout=240)


def verified(text: str, tmp_path: Path) -> str:
    """What systemd says of the unit, as an instance of which the program exists; nothing where there is no systemd."""
    systemd = shutil.which("systemd-analyze")
    if systemd is None:
        return ""
    unit = tmp_path / "transactional@flights.service"
    unit.write_text(text.replace(PROGRAM, sys.executable))
    done = subprocess.run([systemd, "verify", str(unit)], capture_output=True, text=True, check=False, timeout=240)
    return done.stdout + done.stderr + (f"exit code {done.returncode}" if done.returncode else "")


def test_the_dockerfile_is_linted() -> None:
    text = DOCKERFILE.read_text("utf-8")
    done = linted(text)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "DL3002" in linted(text.replace("USER 10001:10001", "USER root")).stdout


def test_the_dockerfile_copies_what_is_there_and_installs_extras_that_are() -> None:
    text = DOCKERFILE.read_text("utf-8")
    copied = [name for line in re.findall(r"^COPY (?!--)(.*)$", text, re.MULTILINE) for name in line.split()[:-1]]
    assert copied
    assert [name for name in copied if not (ROOT / name).exists()] == []
    [extras] = re.findall(r"'\.\[(.*?)\]'", text)
    declared = (ROOT / "pyproject.toml").read_text("utf-8").partition("[project.optional-dependencies]")[2]
    assert [each for each in extras.split(",") if not re.search(rf"^{each} = \[", declared, re.MULTILINE)] == []
    assert DISTRIBUTION in declared


def test_the_constraints_of_the_image_are_the_locked_versions() -> None:
    [pattern] = re.findall(r"grep -oE '(.*)' requirements\.lock", DOCKERFILE.read_text("utf-8"))
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    found = [match[0] for match in re.finditer(pattern, lock, re.MULTILINE)]
    assert len(found) == len(re.findall(r"^\S+==", lock, re.MULTILINE))
    assert "structlog==26.1.0" in found


def test_the_unit_is_verified_as_far_as_systemd_is_there(tmp_path: Path) -> None:
    assert verified(UNIT.read_text("utf-8"), tmp_path) == ""


def test_a_supervisor_starts_again_what_is_to_be_tried_again_and_nothing_else() -> None:
    found = settings(UNIT.read_text("utf-8"))
    assert found["Restart"] == ["on-failure"]
    kept_down = set(map(int, found["RestartPreventExitStatus"][0].split()))
    assert LOOK in kept_down
    assert TRY_AGAIN not in kept_down
    assert (found["KillSignal"], found["KillMode"]) == (["SIGINT"], ["mixed"])


def test_the_unit_calls_the_command_line_as_it_is() -> None:
    [started] = settings(UNIT.read_text("utf-8"))["ExecStart"]
    program, command, *arguments = started.split()
    assert (program, command) == (PROGRAM, "run")
    run = typer.main.get_command(app).commands["run"]  # type: ignore[attr-defined]
    known = {name for parameter in run.params for name in parameter.opts}
    assert {each for each in arguments if each.startswith("--")} <= known


@pytest.mark.parametrize("path", sorted((ROOT / "deploy").iterdir()), ids=lambda path: path.name)
def test_every_file_is_named_by_a_page(path: Path) -> None:
    pages = [page.read_text("utf-8") for page in (ROOT / "docs/howto").glob("*.md")]
    assert any(f"deploy/{path.name}" in page for page in pages)
