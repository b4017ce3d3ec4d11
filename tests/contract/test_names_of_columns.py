"""Every name of a column either works wherever a table is kept, in each of its places, or is refused when the state is
built: by the name, before anything is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.places import place_of
from tests.contract.states import OWNER, AnyState, Place, always, content
from transactional.errors import ConfigError
from transactional.model.absent import ABSENT, Absent
from transactional.model.attempt import TxId

pytestmark = pytest.mark.sampled(5)
NAMES = {
    **{each: each for each in ("a:b", "file:", "http://a", "a%20b#?", "_a-[0]", "SELECT", "é🐈\u202e", "ctid")},
    "__delta_rs_source": "__delta_rs_source",
    "empty": "",
    "a return": "a\rb",
    "a zero byte": "a\0b",
    "half a pair": "\ud800",
    "64 bytes": "x" * 64,
    "255 bytes": "x" * 255,
}
REFUSED = ("empty", "a return", "a zero byte", "half a pair", "__delta_rs_source")
"""Everywhere; others where they can't be."""
HISTORY: list[dict[str, tuple[int] | Absent]] = [
    {"a": (1,), "": (1,)},
    {"a": (2,), "é": (1,)},
    {"": ABSENT},
    {"a": (3,)},
]


@pytest.fixture(
    params=[
        *("sqlite", pytest.param("postgres", marks=pytest.mark.postgres), "delta-rs", "delta-rs/merge"),
        *("delta-rs/log", "delta-rs/staged and compacted"),
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An empty place for a table."""
    with place_of(request, tmp_path) as place:
        yield place


def opened(place: Place, name: str) -> AnyState:
    """The state whose column for the txid is called so, and its others nearly so."""
    prev = {f"prev_{name}v": f"{name}o"}
    columns = {"txid": name, "prev_txid": f"{name}p", "deleted": f"{name}d", **prev}
    return place.state(f"`{name}k` string", f"`{name}v` long", deletes=True, columns=columns)


def built(place: Place, name: str) -> AnyState | ConfigError:
    try:
        return opened(place, name)
    except ConfigError as error:
        return error


@pytest.mark.parametrize("name", NAMES)
def test_a_name_works_or_is_refused(place: Place, name: str) -> None:
    state = built(place, NAMES[name])
    if name in REFUSED or isinstance(state, ConfigError):
        assert NAMES[name].encode("unicode_escape").decode() in str(state)
        assert isinstance(state, ConfigError)
        assert not list(place.folder.iterdir())
        return
    for txid, rows in enumerate(HISTORY, start=1):
        state.put(place.attempt(txid, txid), {(word,): row for word, row in rows.items()})
        state.parts.maintenance.maintain(TxId(txid), always)
    expected = {"a": 3, "é": 1}
    again = opened(place, NAMES[name])
    assert content(again) == expected
    assert again.get(place.attempt(5, 5), [("a",), ("",), ("é",)]) == {("a",): (3,), ("é",): (1,)}
    reader = again.reader(OWNER)
    reader.pin()
    assert len(reader.rows(TxId(4))) == 2
    reader.close()
