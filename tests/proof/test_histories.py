"""A thousand random histories with dead attempts, of every state behind both spouts: each ends as a dict does."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import pytest

from tests.contract.places import in_redis, prepare
from tests.contract.redis_server import RedisServer
from tests.contract.states import STAGED, Place
from tests.contract.test_key_values import run_transactions
from tests.integration.postgres import new_schema, postgres_server, url_of
from transactional.core.ports import StateKind
from transactional.testing.states.trial import KINDS

HISTORIES = 1_000
TOGETHER = {"memory": 1}
"""So many share a table, with keys of their own, and with it the transactions and the dead attempts; of other engines
ten: what takes time there is a commit, whatever is in it."""
TRANSACTIONS = 5
DELTA = ("delta-rs", "delta-rs/merge", "delta-rs/log", "delta-rs/lookup", *(f"delta-rs/{layout}" for layout in STAGED))
MakePlace = Callable[[int, Path], Place]


@contextmanager
def in_postgres() -> Iterator[MakePlace]:
    """A schema of its own for every history."""
    with postgres_server() as sockets:

        def place(number: int, folder: Path) -> Place:
            new_schema(sockets, f"history_{number}")
            return Place("postgres", folder, url=url_of(sockets, f"history_{number}"))

        yield place


@contextmanager
def with_redis(folder: Path) -> Iterator[MakePlace]:
    """A table of its own for every history."""
    folder.mkdir()
    with RedisServer(folder) as server:
        yield lambda number, folder: in_redis(server.url)


def in_folder(engine: str) -> MakePlace:
    """A folder of its own for every history."""

    def place(number: int, folder: Path) -> Place:
        return Place(engine, folder, url=f"sqlite:///{folder}/states.db" if engine == "sqlite" else "")

    return place


@pytest.mark.proof
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "engine",
    [
        *("memory", "sqlite", *DELTA),
        pytest.param("postgres", marks=pytest.mark.postgres),
        pytest.param("redis", marks=pytest.mark.redis),
    ],
)
def test_a_thousand_histories(
    engine: str,
    kind: StateKind,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    told: list[str],
    counts: Counter[str],
    seed: int,
) -> None:
    prepare(engine, monkeypatch)
    with ExitStack() as stack:
        make = in_folder(engine)
        if engine == "postgres":
            make = stack.enter_context(in_postgres())
        if engine == "redis":
            make = stack.enter_context(with_redis(tmp_path / "redis"))
        together = TOGETHER.get(engine, 10)
        for number in range(HISTORIES // together):
            folder = tmp_path / "history"
            folder.mkdir()
            place = make(number, folder)
            random, deletes = Random(f"{seed}/{number}"), number % 4 != 0
            run_transactions(place, kind, random, TRANSACTIONS, deletes=deletes, together=together)
            place.close()
            shutil.rmtree(folder)
    shared = f", {together} in a table" if together > 1 else ""
    told.append(f"{HISTORIES:,} histories of {TRANSACTIONS} transactions{shared}, {engine}, {kind.value}: all equal")
    counts["histories"] += HISTORIES
