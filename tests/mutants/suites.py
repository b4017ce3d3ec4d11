"""Which tests are run for a file: of `make check` those about it first, then those of its room, then the suites that
stand on the room; and of those with servers the files in which its room meets them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from tests.mutants.planting import ROOT

RUNS = ("tests/unit/runtime/engine", "tests/scenarios", "tests/unit/topology/reliable", "tests/changes")
STREAMS = (
    *(
        "tests/unit/topology/streams",
        "tests/unit/topology",
        "tests/unit/test_complete_topology.py",
        "tests/unit/operations/queries",
    ),
    *("tests/windows", "tests/changes", "tests/docs/test_trident_rows.py"),
)
PROCESSING = (
    "tests/unit/runtime/processing",
    "tests/unit/runtime/commit",
    "tests/unit/runtime/tasks",
    "tests/unit/topology/reliable",
    *STREAMS,
)
COMMANDS = (
    "tests/unit/operations/cli",
    "tests/unit/operations/console",
    "tests/unit/operations/web",
    "tests/unit/operations/queries",
)
DELTA = ("tests/integration/delta",)
WORLD = ("tests/simulation",)

SUITES: dict[str, tuple[str, ...]] = {
    "sinks": ("tests/unit/sinks", "tests/unit/runtime/publishing", *WORLD),
    "spouts": ("tests/unit/spouts", "tests/contract/test_spout.py", "tests/unit/runtime/engine", *WORLD),
    "state": ("tests/contract", *DELTA, "tests/unit/operations/doctor", *STREAMS, *WORLD),
    "state/delta": (*DELTA, "tests/contract", "tests/unit/operations/doctor", *STREAMS, *WORLD),
    "transactional/core/store/sql": ("tests/contract", *COMMANDS, "tests/unit/operations/doctor", *WORLD),
    "transactional": ("tests/unit/test_*.py", *RUNS, *PROCESSING, *WORLD),
    "transactional/model/aggregates": ("tests/unit/model/arrow", *PROCESSING, "tests/contract", *WORLD),
    "transactional/model/arrow": (*PROCESSING, "tests/contract", *WORLD),
    "transactional/operations/cli": (*COMMANDS, "tests/unit/operations/doctor"),
    "transactional/operations/console": COMMANDS,
    "transactional/core/machine": (*RUNS, *WORLD),
    "transactional/operations/doctor": (
        "tests/unit/operations/doctor",
        "tests/contract/test_doctor_sql.py",
        "tests/unit/operations/cli",
    ),
    "transactional/runtime/engine": (
        *RUNS,
        "tests/unit/operations/cli",
        "tests/unit/operations/doctor",
        "tests/contract",
        *DELTA,
        *WORLD,
    ),
    "transactional/runtime/tasks": (*PROCESSING, *WORLD),
    "transactional/runtime/commit": ("tests/unit/runtime/publishing", *PROCESSING, *DELTA, *WORLD),
    "transactional/runtime/processing": (*PROCESSING, *DELTA, *WORLD),
    "transactional/operations/queries": ("tests/unit/operations/queries", "tests/contract/test_readers.py", *COMMANDS),
    "transactional/topology/reliable": (*RUNS, *WORLD),
    "transactional/core/store": ("tests/contract", *RUNS, *WORLD),
    "transactional/testing": ("tests/contract", *RUNS, *WORLD),
    "transactional/topology": (*STREAMS, "tests/unit/runtime/processing", "tests/unit/runtime/commit", *RUNS, *WORLD),
    "transactional/topology/streams": STREAMS,
    "transactional/operations/web": COMMANDS,
    "verifier": (
        "tests/contract/test_verifier_*.py",
        "tests/unit/operations/doctor",
        "tests/unit/operations/cli/test_verify.py",
        *WORLD,
    ),
}
"""By room, the most precise one counts: folders, files, and patterns of files."""


STATES = ("opaque_rule", "deletes", "created_for", "rewinds_sql", "readers", "value_columns", "horizons", "key_values")
"""Contract suites in which states meet PostgreSQL and Redis."""
KAFKA = "tests/integration/kafka"
REGISTRY = "tests/integration/registry"
SPARK = "tests/integration/spark"
FAULTS = "tests/integration/faults"
LINES = "tests/integration/command_line"
CONSOLE = "tests/integration/console"
WORKERS = "tests/integration/workers"
CLUSTER = "tests/integration/cluster"
EXAMPLES = "tests/integration/examples"
WINDOWS = "tests/integration/windows"
CRASHES = "tests/proof/test_crash_points.py"
SALES = "tests/journeys/test_sales.py"

SERVERS: dict[str, tuple[str, ...]] = {
    "sinks": ("tests/integration/sinks",),
    "spouts": (f"{KAFKA}/test_planning.py", f"{KAFKA}/test_runs.py", "tests/contract/test_spout.py", KAFKA),
    "spouts/avro": (REGISTRY, f"{EXAMPLES}/test_avro_departures.py", "tests/contract/test_spout.py"),
    "spouts/decoding": (REGISTRY, f"{EXAMPLES}/test_avro_departures.py", "tests/contract/test_spout.py", KAFKA),
    "spouts/registry": (REGISTRY, f"{EXAMPLES}/test_avro_departures.py"),
    "state": (
        *("tests/contract/test_redis.py", "tests/contract/test_state_sql.py", f"{SPARK}/test_guarantees.py"),
        *("tests/contract/test_opaque_rule.py", "tests/contract/test_deletes.py", f"{FAULTS}/test_two_coordinators.py"),
        *(
            "tests/integration/delta/test_state.py",
            "tests/contract/test_rewinds_sql.py",
            "tests/contract/test_horizons.py",
        ),
    ),
    "state/delta": (
        *(
            f"{SPARK}/test_staging.py",
            "tests/integration/delta/test_commit.py",
            "tests/integration/delta/test_state.py",
        ),
        *(f"tests/integration/delta/test_{name}.py" for name in ("encoding", "log", "upkeep", "other_engines")),
        *(f"{FAULTS}/test_{name}.py" for name in ("torn_tables", "stale_copy", "vacuum", "full_disk")),
        "tests/proof/test_power_cuts.py",
    ),
    "state/redis": ("tests/contract/test_redis*.py", *(f"tests/contract/test_{name}.py" for name in STATES)),
    **dict.fromkeys(
        ("state/sql", "transactional/core/store/databases"),
        (
            *("tests/contract/test_state_sql.py", "tests/contract/test_pooler.py", "tests/contract/test_sql_*.py"),
            *("tests/integration/verifier/test_postgres.py", "tests/proof/test_power_cuts.py"),
            *(f"tests/contract/test_{name}.py" for name in STATES),
        ),
    ),
    "transactional/core/store/sql": (
        *("tests/contract/test_sql_*.py", "tests/contract/test_stores_read_only.py", "tests/contract/test_pooler.py"),
        *("tests/contract/test_coordinator_store*.py", f"{FAULTS}/test_two_stores.py", f"{FAULTS}/test_take_overs.py"),
        *(f"{FAULTS}/test_two_coordinators.py", f"{LINES}/test_lifecycle.py", "tests/proof/test_power_cuts.py"),
    ),
    "transactional": (f"{SPARK}/test_executor.py", f"{LINES}/test_quiet_runs.py", f"{LINES}/test_bad_input.py", SPARK),
    "transactional/model/aggregates": (f"{SPARK}/test_trident.py", f"{SPARK}/test_phases.py", EXAMPLES, SALES),
    "transactional/model/arrow": (f"{SPARK}/test_trident.py", f"{SPARK}/test_phases.py", EXAMPLES, SALES),
    "transactional/operations/cli": (LINES, CONSOLE, "tests/integration/verifier"),
    "transactional/operations/console": (CONSOLE, f"{LINES}/test_quiet_runs.py"),
    "transactional/core/machine": (f"{FAULTS}/test_kills.py", f"{LINES}/test_lifecycle.py", FAULTS, CRASHES),
    "transactional/operations/doctor": (
        *("tests/contract/test_doctor_sql.py", f"{FAULTS}/test_stale_copy.py", f"{FAULTS}/test_torn_tables.py"),
        *(f"{CONSOLE}/test_pages.py", "tests/integration/verifier", LINES),
    ),
    "transactional/model/drawing": (CONSOLE,),
    "transactional/runtime/engine": (
        *(f"{LINES}/test_lifecycle.py", f"{LINES}/test_dead_letters.py", f"{FAULTS}/test_kills.py"),
        *(FAULTS, f"{KAFKA}/test_runs.py", f"{KAFKA}/test_changes.py", CRASHES),
    ),
    "transactional/runtime/tasks": (SPARK, WORKERS, f"{LINES}/test_dead_letters.py", EXAMPLES),
    "transactional/runtime/executors/auto": (WORKERS, f"{SPARK}/test_steps.py", SALES),
    "transactional/runtime/commit": (SPARK, WORKERS, CLUSTER, EXAMPLES),
    "transactional/runtime/processing": (SPARK, WORKERS, CLUSTER, EXAMPLES),
    "transactional/core/ports": (f"{KAFKA}/test_several_spouts.py", f"{KAFKA}/test_runs.py", SPARK, SALES),
    "transactional/operations/queries": (
        "tests/contract/test_readers.py",
        "tests/integration/verifier",
        f"{CONSOLE}/test_live.py",
    ),
    "transactional/topology/reliable": (
        f"{CLUSTER}/test_guarantees.py",
        f"{SPARK}/test_guarantees.py",
        f"{FAULTS}/test_kills.py",
    ),
    "transactional/runtime/executors/spark": (SPARK, CLUSTER, WORKERS),
    "transactional/core/store": ("tests/contract/test_sql_*.py", f"{FAULTS}/test_two_coordinators.py", LINES, FAULTS),
    "transactional/operations/telemetry": ("tests/integration/prometheus", f"{LINES}/test_quiet_runs.py"),
    "transactional/topology": (f"{SPARK}/test_executor.py", f"{KAFKA}/test_changes.py", EXAMPLES, SPARK, SALES),
    "transactional/topology/streams": (f"{SPARK}/test_trident.py", WINDOWS, EXAMPLES, SALES, "tests/journeys"),
    "transactional/operations/web": (CONSOLE, "tests/integration/prometheus"),
    "transactional/runtime/executors/workers": (WORKERS, f"{CLUSTER}/test_steps.py"),
    "verifier": ("tests/integration/verifier", "tests/contract/test_verifier_*.py", f"{FAULTS}/test_stale_copy.py"),
}
"""As `SUITES`, of what starts servers and programs: what is likeliest to catch something, and costs least, comes first,
for a variant has five minutes."""


def suites_of(file: str, root: Path = ROOT) -> list[str]:
    """The files with tests, each once, in the order in which they are run."""
    path = PurePosixPath(file)
    folder = f"tests/unit/{path.parent.as_posix().removeprefix('transactional').lstrip('/')}".rstrip("/")
    wanted = [
        f"{folder}/test_{path.stem}.py",
        f"{folder}/test_{path.stem}_*.py",
        f"{folder}/test_*.py",
        *_of_room(path, SUITES),
    ]
    return _files(wanted, root)


def servers_of(file: str, root: Path = ROOT) -> list[str]:
    """The files with tests that start servers, each once, in the order in which they are run."""
    return _files(_of_room(PurePosixPath(file), SERVERS), root)


def _of_room(file: PurePosixPath, suites: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The suites of the most precise room that the file lies in."""
    return next((suites[str(folder)] for folder in file.parents if str(folder) in suites), ())


def _files(names: Iterable[str], root: Path) -> list[str]:
    return list(dict.fromkeys(file for name in names for file in files_of(name, root)))


def files_of(wanted: str, root: Path) -> Iterator[str]:
    pattern = wanted if wanted.endswith(".py") else f"{wanted}/**/test_*.py"
    yield from (path.relative_to(root).as_posix() for path in sorted(root.glob(pattern)))
