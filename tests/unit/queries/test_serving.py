"""Queries over HTTP: who is answered, with what, and what hostile addresses get."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from state.memory import MemoryMapState, MemoryTable
from tests.unit.queries.words import run, word_count
from transactional.queries import QueryClient
from transactional.queries.serving import application
from transactional.web.guard import Access

TOKEN = "a-token-of-the-tests"
BASE = "http://127.0.0.1:8788"
BATCHES = [[("the", 3), ("dog/cat", 3)], [("the", 3), ("ä%", 2)]]


@pytest.fixture
def client() -> Iterator[TestClient]:
    """A client with the token."""
    topology = word_count(MemoryMapState(), MemoryMapState(table=MemoryTable("sizes")), BATCHES)
    with QueryClient(topology, run(topology)) as queries:
        served = TestClient(application(queries, Access(TOKEN)), base_url=BASE, raise_server_exceptions=False)
        served.headers["authorization"] = f"Bearer {TOKEN}"
        yield served


def test_each_part_of_the_address_is_a_value(client: TestClient) -> None:
    answer = client.get("/drpc/total/the%20dog%2Fcat")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {"txid": 2, "rows": [{"total": 3, "words": 2}]}
    assert client.get("/drpc/count_of/%C3%A4%25").json()["rows"][0]["count"] == 1
    assert client.get("/drpc/total/").json()["rows"] == [{"total": 0, "words": 0}]
    assert client.get("/").json()["queries"]["total"] == {"fields": "line string", "returns": "total long, words long"}


@pytest.mark.parametrize(
    ("path", "status", "told"),
    [
        ("/drpc/count/the", 404, "there is no query 'count'; there are: count_of, both, total, shout"),
        ("/drpc/", 404, "there is no query ''"),
        ("/drpc/total", 400, "query 'total' takes 1 values, 'line string'; got 0"),
        ("/drpc/total/a/b", 400, "query 'total' takes 1 values, 'line string'; got 2"),
        ("/drpc/total/%FF", 400, "the address is not UTF-8"),
        ("/drpc/shout/", 500, "query 'shout': task 0 of 1: component 'b-0-map' raised ZeroDivisionError"),
        ("/drpc/%22%3E%3Cscript%3E/x", 404, "there is no query '\"><script>'"),
        ("/drpc/../drpc/total/a", 200, None),
        ("/drpc/total/" + "x" * 10_000, 200, None),
        ("/drpc/total/%00", 200, None),
    ],
)
def test_mistakes_have_a_line_each(client: TestClient, path: str, status: int, told: str | None) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    if told is not None:
        assert answer.json()["error"].startswith(told)
        assert "\n" not in answer.json()["error"]


def test_only_who_has_the_token_is_answered(client: TestClient) -> None:
    """Whatever the host is called, and whichever site has sent the request."""
    assert client.get("/drpc/total/a", headers={"host": "evil.example"}).status_code == 421
    for given in ("Bearer x", "Bearer", "Basic " + TOKEN, "", TOKEN):
        assert client.get("/drpc/total/a", headers={"authorization": given}).status_code == 401
    assert client.get("/drpc/total/a", headers={"authorization": f"bearer {TOKEN}"}).status_code == 200
    assert client.post("/drpc/total/a").status_code == 405
    foreign = {"authorization": "", "sec-fetch-site": "cross-site", "sec-fetch-dest": "empty"}
    assert client.get("/drpc/total/a", headers=foreign).status_code == 403


def test_a_table_that_is_away_is_an_outage(tmp_path: Path) -> None:
    from state.delta.state import DeltaMapState

    topology = word_count(DeltaMapState(tmp_path / "words"), DeltaMapState(tmp_path / "sizes"), BATCHES)
    with QueryClient(topology, run(topology)) as queries:
        served = TestClient(application(queries, Access(TOKEN)), base_url=BASE)
        (tmp_path / "words").rename(tmp_path / "away")
        answer = served.get("/drpc/total/a", headers={"authorization": f"Bearer {TOKEN}"})
        assert (answer.status_code, answer.json()["code"]) == (503, "TX300")
        (tmp_path / "away").rename(tmp_path / "words")
        assert served.get("/drpc/total/the", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
