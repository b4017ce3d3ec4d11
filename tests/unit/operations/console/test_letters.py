"""The page of dead letters: from the store alone the transactions, with the topology's code the tuples."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.drivers import World
from tests.unit.operations.console.browsing import browser
from tests.unit.operations.console.stores import HOSTILE, Past
from transactional.core.store import AttemptTimes
from transactional.core.store.rules import letters_in
from transactional.core.store.set_aside import TRANSACTIONS_MAX, set_aside_of
from transactional.core.store.sql import reader
from transactional.core.store.sql.rows import times_of
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import StoreUnavailable
from transactional.model.names import DEAD_LETTERS
from transactional.operations.cli.output.status_json import status_json
from transactional.operations.cli.output.statuses import describe_dead_letters


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))


class Letters:
    """A table of dead letters, as far as it is read."""

    def __init__(self, rows: list[dict[str, object]]) -> None:
        self.rows, self.parts = rows, SimpleNamespace(reading=self)

    def read(self) -> Letters:
        return self

    def to_pylist(self) -> list[dict[str, object]]:
        return self.rows


def letter(transaction: int, number: int, again: int | None = None, error: str = "ValueError: no") -> dict[str, object]:
    where = {"component": "split", "source": "source", "stream": "default", "tuple": f'["{transaction}"]'}
    return {"transaction": transaction, "number": number, **where, "error": error, "tried_again_in": again}


def past_with_letters() -> Past:
    past = Past().begin().committed(2)
    past.commit(past.issue(), {"lag": 0, "letters": 7, "letters_of": {"split": 5, "count": 2}})
    past.commit(past.issue(), {"lag": 0, "letters": 1})  # as an older version has recorded it
    return past.committed(1)


def test_the_store_alone_shows_which_transactions_have_set_tuples_aside() -> None:
    text = text_of(browser(past_with_letters()).get("/t/words/letters").text)
    assert re.search(r"Committed 4 1 \u2013 200 .* 3 7 count 2, split 5 200 ", text), text
    assert "transactional ui --app MODULE:TOPOLOGY shows them here" in text


def test_a_topology_that_is_known_shows_the_tuples_newest_first() -> None:
    rows = [
        letter(number, 0, 9 if number == 1 else None, f"ValueError: {HOSTILE}\nTraceback") for number in range(1, 301)
    ]
    known = {"words": replace(World().topology(), dead_letters=Letters(rows))}  # type: ignore[arg-type]
    page = browser(past_with_letters(), topologies=known).get("/t/words/letters").text
    assert "300 in their table, 299 of them wait to be tried again · the last 200" in text_of(page)
    assert page.index(">300:0<") < page.index(">299:0<") < page.index(">101:0<")
    assert ">100:0<" not in page
    assert "<img" not in page
    assert "Traceback" not in page


def test_the_number_of_letters_is_one_wherever_it_stands() -> None:
    past = Past().begin()
    past.commit(past.issue(), {"letters": 2, "letters_of": {"split": 2}})
    past.retried()
    for _ in range(160):
        past.fail(past.issue())
        past.commit(past.issue(past.txid), {"letters": 1, "letters_of": {"split": 1}})
    assert sum(letters_in(each.details) for each in past.store.times("words", limit=300)) < 162
    client = browser(past)
    assert "dead letters 162 last 162 transactions" in text_of(client.get("/t/words/").text)
    letters = text_of(client.get("/t/words/letters").text)
    assert "Transactions with dead letters 162 set aside, last 162 transactions · the newest 100" in letters
    [status] = past.store.status("words")
    set_aside = set_aside_of(past.store, status)
    assert describe_dead_letters({"words": set_aside}) == [
        "words: 162 tuples set aside, last 162 transactions; `transactional deadletters` shows them"
    ]
    assert status_json(status, {}, set_aside=set_aside)["dead_letters"] == 162
    assert text_of(client.get("/t/words/transactions/1").text).count("Tuples set aside as dead letters 2: split 2") == 1


def test_letters_are_counted_over_a_number_of_transactions_and_followed_by_later_ones() -> None:
    past = Past().begin()
    for letters in (5, 1, *(0 for _ in range(TRANSACTIONS_MAX - 2)), 2):
        past.commit(past.issue(), {"letters": letters})
    [status] = past.store.status("words")
    set_aside = set_aside_of(past.store, status)
    assert (set_aside.letters, set_aside.scope) == (3, "last 500 transactions")
    past.commit(past.issue(), {"letters": 4})
    recent = past.store.times("words", limit=300)
    followed = set_aside.followed(recent)
    assert (followed.letters, len(followed.attempts)) == (7, 3)
    assert followed.followed(recent) == followed
    assert set_aside_of(past.store, status).followed(recent).letters == 6, (
        "one that is newer than the status counts once"
    )


def test_the_table_of_dead_letters_has_the_rows_of_the_last_transaction() -> None:
    past = past_with_letters()
    past.store.record_start(past.held, {"spout": {}, "committers": {DEAD_LETTERS: {"table": "/letters"}}})
    past.commit(past.issue(), {"letters": 3})
    assert "dead-letters table /letters 3 \u2013 " in text_of(browser(past).get("/t/words/states").text)


def test_a_table_that_can_not_be_read_costs_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Letters([])

    def refuse() -> Letters:
        raise StoreUnavailable("the table does not respond")

    monkeypatch.setattr(table, "read", refuse)
    known = {"words": replace(World().topology(), dead_letters=table)}  # type: ignore[arg-type]
    text = text_of(browser(past_with_letters(), topologies=known).get("/t/words/letters").text)
    assert "Their table can't be read: the table does not respond" in text
    assert re.search(r" 3 7 count 2, split 5 200 ", text)


def test_transactions_without_dead_letters_are_left_in_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(SqlCoordinatorStore(f"sqlite:///{tmp_path}/store.db")) as store:
        past = Past(store=store).begin().committed(20)
        past.commit(past.issue(), {"letters": 3})
        client, read = browser(past.committed(2)), list[int]()

        def counted(row: Any) -> AttemptTimes:
            read.append(row.txid)
            return times_of(row)

        monkeypatch.setattr(reader, "times_of", counted)
        assert re.search(r" 21 3 ", text_of(client.get("/t/words/letters").text))
    assert read == [21]
