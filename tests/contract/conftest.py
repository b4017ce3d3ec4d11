"""Real servers and sessions that contract tests share, and the places that a store keeps its progress in."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.contract.places import ENGINES, place_of
from tests.contract.redis_server import RedisServer
from tests.contract.states import Place
from tests.contract.storages import Storage, Store
from tests.integration.postgres import new_schema, postgres_server, url_of


@pytest.fixture(scope="session")
def postgres_sockets() -> Iterator[Path]:
    """The socket folder of a PostgreSQL server that runs as long as the tests do."""
    with postgres_server() as folder:
        yield folder


@pytest.fixture(scope="session")
def postgres_url(postgres_sockets: Path) -> str:
    """The URL of a PostgreSQL database that all tests of the session share."""
    return url_of(postgres_sockets)


@pytest.fixture(scope="session")
def postgres_names() -> Iterator[str]:
    return (f"store_{number}" for number in itertools.count(1))


@pytest.fixture
def postgres_schema(postgres_sockets: Path, postgres_names: Iterator[str]) -> str:
    """The name of a new, empty schema in PostgreSQL."""
    name = next(postgres_names)
    new_schema(postgres_sockets, name)
    return name


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A durable Redis server, shared by all tests that leave it as it is: take tables of your own."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def redis_url(redis_server: RedisServer) -> str:
    return redis_server.url


@pytest.fixture(params=ENGINES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An empty place for a table."""
    with place_of(request, tmp_path) as place:
        yield place


@pytest.fixture
def sqlite_storage(tmp_path: Path) -> Iterator[Storage]:
    storage = Storage(f"sqlite:///{tmp_path}/store.db")
    yield storage
    storage.close()


@pytest.fixture
def postgres_storage(postgres_sockets: Path, postgres_schema: str) -> Iterator[Storage]:
    storage = Storage(url_of(postgres_sockets, postgres_schema))
    yield storage
    storage.close()


@pytest.fixture
def memory_storage() -> Storage:
    return Storage(None)


DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture
def in_memory_storage(tmp_path: Path) -> Iterator[Storage]:
    storage = Storage(f"sqlite://?name={quote(str(tmp_path))}")
    yield storage
    storage.close()


@pytest.fixture(params=["memory", "in_memory", *DATABASES])
def storage(request: pytest.FixtureRequest) -> Storage:
    """Each kind of storage."""
    storage: Storage = request.getfixturevalue(f"{request.param}_storage")
    return storage


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest) -> Storage:
    """Each kind of storage that several processes can share."""
    storage: Storage = request.getfixturevalue(f"{request.param}_storage")
    return storage


@pytest.fixture
def store(storage: Storage) -> Store:
    return storage.open()
