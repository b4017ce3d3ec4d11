"""The wheel that `make wheel` builds, as somebody without this clone has it: with its own requirements alone, on the
newest Python of this machine that is supported."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.docs.pages import blocks
from tests.tidy.files import ROOT, our_files

OTHER_PYTHON = ROOT / ".venv" / "newest" / "bin" / "python"
TIMEOUT_S = 240
pytestmark = pytest.mark.timeout(TIMEOUT_S)


def run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> str:
    """What a command prints; it must succeed, and knows nothing of this clone."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))}
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder)
    [built] = folder.glob("transactional_topologies-*-py3-none-any.whl")
    return built


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel, and of the lock what running takes."""
    assert OTHER_PYTHON.exists(), "there is no .venv/newest: `make test` sets it up"
    folder, uv = tmp_path_factory.mktemp("installed"), OTHER_PYTHON.with_name("uv")
    run(uv, "venv", "--quiet", "--python", OTHER_PYTHON, folder / "venv")
    python, lock = folder / "venv" / "bin" / "python", folder / "run.lock"
    lock.write_text((ROOT / "requirements.lock").read_text("utf-8").partition("\n# To test")[0], "utf-8")
    install = (uv, "pip", "install", "--quiet", "--python", python, "--no-deps")
    run(*install, "--no-build-isolation", "--require-hashes", "--requirement", lock)
    run(*install, "--offline", wheel)
    return python.parent


def test_it_has_four_packages_and_the_examples_as_data(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    packages = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert packages == {"transactional", "spouts", "state", "sinks", "verifier"}
    examples = {name.rpartition("/")[2] for name in names if name.startswith("transactional/examples/")}
    assert examples == {path.name for path in our_files() if path.parent == ROOT / "examples"}


def test_what_running_takes_is_all_that_it_requires(programs: Path) -> None:
    run(OTHER_PYTHON.with_name("uv"), "pip", "check", "--python", programs / "python")
    listed = run(
        programs / "python", "-c", "import importlib.metadata as m; print(*(d.name for d in m.distributions()))"
    )
    assert {"psycopg", "pytest", "starlette"}.isdisjoint(listed.split())


def test_the_first_program_of_the_readme_runs(programs: Path, tmp_path: Path) -> None:
    [program] = [block for block in blocks((ROOT / "README.md").read_text("utf-8")) if block.file_name == "words.py"]
    (tmp_path / "words.py").write_text(program.text, "utf-8")
    command = (programs / "transactional", "run", "words:build", "--master", "none", "--until-drained")
    assert " committed, the last is " in run(*command, cwd=tmp_path)
    assert run(*command, cwd=tmp_path).startswith("0 transactions committed, ")
    assert '"word": ' in run(programs / "transactional", "read", "words:build", cwd=tmp_path)
    assert "deadletters" in run(programs / "transactional", "--help", cwd=tmp_path)


@pytest.mark.spark
@pytest.mark.long("test_the_first_program_of_the_readme_runs")
def test_an_example_runs_from_its_copy(programs: Path, tmp_path: Path) -> None:
    """On Spark, whose workers are of that Python, too."""
    assert "trident_reach " in run(programs / "transactional", "examples", cwd=tmp_path)
    printed = run(programs / "transactional", "examples", "transactional_global_count", cwd=tmp_path)
    command = printed.splitlines()[-1].removeprefix("run it: python ").split()
    lines = run(programs / "python", *command, cwd=tmp_path).splitlines()
    assert lines[-1] == "global count: 19 of 19 tuples, from data/global-count/count"
