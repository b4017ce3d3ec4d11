"""The page of dead letters: from the store alone the transactions, with the topology's code the tuples."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from state.store import reader
from state.store.rows import times_of
from state.store.sql_store import SqlCoordinatorStore
from tests.unit.console.browsing import browser
from tests.unit.console.stores import HOSTILE, Past
from tests.unit.drivers import World
from transactional.errors import StoreUnavailable
from transactional.store import AttemptTimes


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))


class Letters:
    """A table of dead letters, as far as it is read."""

    def __init__(self, rows: list[dict[str, object]]) -> None:
        self.rows = rows

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
    assert "299 wait to be tried again, of 300 · the last 200" in text_of(page)
    assert page.index(">300:0<") < page.index(">299:0<") < page.index(">101:0<")
    assert ">100:0<" not in page
    assert "<img" not in page
    assert "Traceback" not in page


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
