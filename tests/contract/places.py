"""The engines that contract tests of states run over, and an empty place for a table of each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.contract.states import STAGED, Place, look_up_always
from tests.integration.postgres import url_of

ENGINES = [
    "memory",
    "sqlite",
    "sqlite in memory",
    pytest.param("postgres", marks=pytest.mark.postgres),
    "delta-rs",
    "delta-rs/files",
    "delta-rs/overwritten",
    "delta-rs/log",
    "delta-rs/lookup",
    "delta-rs/files, lookup",
    *(f"delta-rs/{layout}" for layout in STAGED),
    pytest.param("redis", marks=pytest.mark.redis),
]
NUMBERS = itertools.count(1)


@contextmanager
def place_of(request: pytest.FixtureRequest, folder: Path, engine: str = "") -> Iterator[Place]:
    """An empty place for a table of the engine, by default the one that a fixture is asked for."""
    engine = engine or request.param
    prepare(engine, request.getfixturevalue("monkeypatch"))
    url = url_in(folder, engine)
    if engine == "postgres":
        sockets: Path = request.getfixturevalue("postgres_sockets")
        url = url_of(sockets, request.getfixturevalue("postgres_schema"))
    place = in_redis(request.getfixturevalue("redis_url")) if engine == "redis" else Place(engine, folder, url=url)
    yield place
    place.close()


def in_redis(url: str) -> Place:
    """A new table of a server."""
    return Place("redis", Path(), url=url, table=f"table {next(NUMBERS)}")


def prepare(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set what an engine stands for and its states can't be told."""
    if engine.endswith("lookup"):
        look_up_always(monkeypatch)


def url_in(folder: Path, engine: str) -> str:
    """The URL of a new SQLite database, "" for engines that are none."""
    urls = {"sqlite": f"sqlite:///{folder}/states.db", "sqlite in memory": f"sqlite://?name={quote(str(folder))}"}
    return urls.get(engine, "")
