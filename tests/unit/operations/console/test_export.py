"""A page in one file: whole, with nothing to load, to run or to follow."""

from __future__ import annotations

from tests.unit.operations.console.stores import HOSTILE, Past
from tests.unit.operations.console.test_app import Reader
from transactional.operations.console.export import render_page_file


def written(past: Past) -> str:
    [status] = past.store.status(past.topology_id)
    return render_page_file(past.store, status, past.clock.wall_ms())


def test_a_file_has_the_diagrams_and_loads_nothing() -> None:
    page = written(Past().begin().committed(6).retried().committed(3))
    found = Reader(page)
    assert found.links == ["#main"]
    assert found.handlers == []
    assert "script" not in found.tags
    assert found.tags.count("svg") == 6
    assert "--processing:" in page
    assert "attempt 7:9 committed" in page


def test_no_text_of_the_store_becomes_an_element() -> None:
    past = Past(HOSTILE, name=HOSTILE).begin().committed(6).retried()
    past.fail(past.issue())
    found = Reader(written(past))
    assert {"script", "img"}.isdisjoint(found.tags)
    assert found.handlers == []
    assert found.links == ["#main"]
