"""Two processes coordinate one topology: one leads, one stands by; the leader stops in each phase, and wakes too late.

Half of all cases: each phase over each store, with one kind of spout, before or after the other one has committed. All
of them are in `tests/proof/test_two_coordinators.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.faults.standing_still import IN_STORE, POINTS
from tests.integration.faults.two_coordinators import SPOUTS, Two, held_up, shut_out
from tests.integration.postgres import new_schema, postgres_server


@pytest.fixture(scope="module")
def sockets() -> Iterator[Path]:
    """The socket folder of a PostgreSQL server."""
    with postgres_server() as folder:
        yield folder


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("point", "number"), [(point, number) for number, point in enumerate(POINTS) if point != IN_STORE]
)
def test_over_one_sqlite_file(point: str, number: int, tmp_path: Path) -> None:
    two = Two(tmp_path, f"sqlite:///{tmp_path}/store.db", SPOUTS[number % 2])
    shut_out(two, point, after_commits=number // 2 % 2 == 0)


def test_over_one_sqlite_file_who_stops_inside_a_write_holds_up_the_other_until_it_goes_on(tmp_path: Path) -> None:
    held_up(Two(tmp_path, f"sqlite:///{tmp_path}/store.db", "opaque"))


@pytest.mark.postgres
@pytest.mark.sampled(4)
@pytest.mark.parametrize(("number", "point"), list(enumerate(POINTS)))
def test_over_one_postgresql_database(
    number: int, point: str, tmp_path: Path, sockets: Path, request: pytest.FixtureRequest
) -> None:
    store = new_schema(sockets, f"two_{number}")
    shut_out(Two(tmp_path, store, SPOUTS[(number + 1) % 2]), point, after_commits=number // 2 % 2 == 1)
