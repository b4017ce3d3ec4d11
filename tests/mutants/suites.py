"""Which of the tests of `make check` are run for a file: those about it first, then those of its room, then the suites
that stand on the room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from tests.mutants.planting import ROOT

RUNS = ("tests/unit/engine", "tests/scenarios", "tests/unit/reliable", "tests/changes")
STREAMS = (
    *("tests/unit/trident", "tests/unit/topology", "tests/unit/test_complete_topology.py", "tests/unit/queries"),
    *("tests/windows", "tests/changes", "tests/docs/test_trident_rows.py"),
)
PROCESSING = ("tests/unit/phases", "tests/unit/execution", "tests/unit/reliable", *STREAMS)
COMMANDS = ("tests/unit/commands", "tests/unit/console", "tests/unit/web", "tests/unit/queries")
DELTA = ("tests/integration/delta",)
WORLD = ("tests/simulation",)

SUITES: dict[str, tuple[str, ...]] = {
    "spouts": ("tests/unit/spouts", "tests/contract/test_spout.py", "tests/unit/engine", *WORLD),
    "state": ("tests/contract", *DELTA, "tests/unit/doctor", *STREAMS, *WORLD),
    "state/delta": (*DELTA, "tests/contract", "tests/unit/doctor", *STREAMS, *WORLD),
    "state/store": ("tests/contract", *COMMANDS, "tests/unit/doctor", *WORLD),
    "transactional": ("tests/unit/test_*.py", *RUNS, *PROCESSING, *WORLD),
    "transactional/aggregates": ("tests/unit/arrow", *PROCESSING, "tests/contract", *WORLD),
    "transactional/arrow": (*PROCESSING, "tests/contract", *WORLD),
    "transactional/commands": (*COMMANDS, "tests/unit/doctor"),
    "transactional/console": COMMANDS,
    "transactional/core": (*RUNS, *WORLD),
    "transactional/doctor": ("tests/unit/doctor", "tests/contract/test_doctor_sql.py", "tests/unit/commands"),
    "transactional/engine": (*RUNS, "tests/unit/commands", "tests/unit/doctor", "tests/contract", *DELTA, *WORLD),
    "transactional/execution": (*PROCESSING, *WORLD),
    "transactional/phases": (*PROCESSING, *DELTA, *WORLD),
    "transactional/queries": ("tests/unit/queries", "tests/contract/test_readers.py", *COMMANDS),
    "transactional/reliable": (*RUNS, *WORLD),
    "transactional/store": ("tests/contract", *RUNS, *WORLD),
    "transactional/testing": ("tests/contract", *RUNS, *WORLD),
    "transactional/topology": (*STREAMS, "tests/unit/phases", *RUNS, *WORLD),
    "transactional/trident": STREAMS,
    "transactional/web": COMMANDS,
    "verifier": (
        "tests/contract/test_verifier_*.py",
        "tests/unit/doctor",
        "tests/unit/commands/test_verify.py",
        *WORLD,
    ),
}
"""By room, the most precise one counts: folders, files, and patterns of files."""


def suites_of(file: str, root: Path = ROOT) -> list[str]:
    """The files with tests, each once, in the order in which they are run."""
    path = PurePosixPath(file)
    folder = f"tests/unit/{path.parent.as_posix().removeprefix('transactional').lstrip('/')}".rstrip("/")
    room = next((str(each) for each in path.parents if str(each) in SUITES), "")
    wanted = [
        f"{folder}/test_{path.stem}.py",
        f"{folder}/test_{path.stem}_*.py",
        f"{folder}/test_*.py",
        *SUITES.get(room, ()),
    ]
    return list(dict.fromkeys(name for each in wanted for name in files_of(each, root)))


def files_of(wanted: str, root: Path) -> Iterator[str]:
    pattern = wanted if wanted.endswith(".py") else f"{wanted}/**/test_*.py"
    yield from (path.relative_to(root).as_posix() for path in sorted(root.glob(pattern)))
