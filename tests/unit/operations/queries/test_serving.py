"""Queries over HTTP: who is answered, with what, and what hostile addresses get."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from state.memory import MemoryMapState, MemoryTable
from tests.unit.operations.queries.words import run, word_count
from transactional.operations.queries.serving import application
from transactional.operations.queries.slots import QuestionSlots
from transactional.operations.web.guard import Access
from transactional.queries import QueryClient
from transactional.trident import Stream, TridentTopology

TOKEN = "a-token-of-the-tests"
BASE = "http://127.0.0.1:8788"
AUTHORIZATION = {"authorization": f"Bearer {TOKEN}"}
RELEASED = threading.Event()
BATCHES = [[("the", 3), ("dog/cat", 3)], [("the", 3), ("ä%", 2)]]


@pytest.fixture
def client() -> Iterator[TestClient]:
    """A client with the token."""
    topology = word_count(MemoryMapState(), MemoryMapState(table=MemoryTable("sizes")), BATCHES)
    with QueryClient(topology, run(topology)) as queries:
        served = TestClient(
            application(queries, Access(TOKEN), QuestionSlots(30)), base_url=BASE, raise_server_exceptions=False
        )
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
        served = TestClient(application(queries, Access(TOKEN), QuestionSlots(30)), base_url=BASE)
        (tmp_path / "words").rename(tmp_path / "away")
        answer = served.get("/drpc/total/a", headers={"authorization": f"Bearer {TOKEN}"})
        assert (answer.status_code, answer.json()["code"]) == (503, "TX300")
        (tmp_path / "away").rename(tmp_path / "words")
        assert served.get("/drpc/total/the", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


def wait_for_release(row: Any) -> str:
    """A function of a query that takes as long as the test wants."""
    assert RELEASED.wait(60)
    return str(row.args)


@contextmanager
def served_with(slots: QuestionSlots) -> Iterator[TestClient]:
    """A server of a query that waits, and of one that does not; it has the token of no request."""
    topology = TridentTopology("served")

    @topology.query("waits", "args string")
    def waits(questions: Stream) -> Stream:
        return questions.map(wait_for_release, "result string")

    @topology.query("echo", "args string")
    def echo(questions: Stream) -> Stream:
        return questions.map(lambda row: row.args, "result string")

    RELEASED.clear()
    with QueryClient(topology.build()) as queries:
        application_of_queries = application(queries, Access(TOKEN), slots)
        with TestClient(application_of_queries, base_url=BASE) as client:
            try:
                yield client
            finally:
                RELEASED.set()
                for thread in threading.enumerate():
                    if thread.name == "question":
                        thread.join(60)


def test_a_question_that_takes_too_long_gives_up_its_slot() -> None:
    """With a single slot: the next question is answered, although the first one still runs."""
    with served_with(slots := QuestionSlots(0.3, side_by_side=1)) as client:
        late = client.get("/drpc/waits/a", headers=AUTHORIZATION)
        assert (late.status_code, late.json()["code"]) == (504, "TX500")
        assert late.json()["error"].startswith("no answer within 0.3 s, which is the --timeout-s of this server")
        slots.timeout_s = 60
        assert client.get("/drpc/echo/b", headers=AUTHORIZATION).json()["rows"] == [{"result": "b"}]


def test_questions_are_answered_side_by_side() -> None:
    with served_with(QuestionSlots(60)) as client, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.get, "/drpc/waits/a", headers=AUTHORIZATION)
        assert client.get("/drpc/echo/b", headers=AUTHORIZATION).json()["rows"] == [{"result": "b"}]
        assert not waiting.done()
        RELEASED.set()
        assert waiting.result(60).json()["rows"] == [{"result": "a"}]


def test_with_too_many_slots_given_up_the_process_wants_a_restart() -> None:
    """Who asks whether it is alive needs no token; it is alive again once a question has ended after all."""
    with served_with(slots := QuestionSlots(0.3, given_up_max=2)) as client:
        for _ in range(2):
            assert client.get("/livez", headers={"host": "10.0.0.7:8788"}).status_code == 200
            assert client.get("/drpc/waits/a", headers=AUTHORIZATION).status_code == 504
        answer = client.get("/livez", headers={"host": "10.0.0.7:8788"})
        assert answer.status_code == 503
        assert answer.text.startswith("2 questions have taken longer than 0.3 s, and still run in functions of")
        refused = client.get("/drpc/echo/b", headers=AUTHORIZATION)
        assert (refused.status_code, refused.json()["code"]) == (503, "TX500")
        assert client.get("/drpc/echo/b").status_code == 401
    assert slots.given_up == 0
