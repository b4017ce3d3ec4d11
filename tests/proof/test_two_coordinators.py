"""All cases of `tests/integration/faults/test_two_coordinators.py`: each phase, store and spout, before and after."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.faults.standing_still import IN_STORE, POINTS
from tests.integration.faults.two_coordinators import SPOUTS, Two, shut_out
from tests.integration.postgres import new_schema, postgres_server

pytestmark = pytest.mark.proof
CASES = [
    (point, number, spout, after_commits)
    for number, point in enumerate(POINTS)
    for spout in SPOUTS
    for after_commits in (False, True)
]


@pytest.fixture(scope="module")
def sockets() -> Iterator[Path]:
    """The socket folder of a PostgreSQL server."""
    with postgres_server() as folder:
        yield folder


@pytest.mark.parametrize(
    ("point", "spout", "after_commits"),
    [(point, spout, after_commits) for point, _, spout, after_commits in CASES if point != IN_STORE],
)
def test_over_one_sqlite_file(*, point: str, spout: str, after_commits: bool, tmp_path: Path) -> None:
    shut_out(Two(tmp_path, f"sqlite:///{tmp_path}/store.db", spout), point, after_commits=after_commits)


@pytest.mark.postgres
@pytest.mark.parametrize(("point", "number", "spout", "after_commits"), CASES)
def test_over_one_postgresql_database(
    *, point: str, number: int, spout: str, after_commits: bool, tmp_path: Path, sockets: Path
) -> None:
    store = new_schema(sockets, f"two_{number}_{spout}_{after_commits}".lower())
    shut_out(Two(tmp_path, store, spout), point, after_commits=after_commits)
