"""What an earlier release has left is read, checked, and gone on with: see `tests/fixtures/earlier/make.py`."""

from __future__ import annotations

import json
import re
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.fixtures.earlier.make import unpack
from tests.unit.command_line import Command, command
from transactional.model.batch import METADATA_VERSION

__all__ = ["command"]

pytestmark = pytest.mark.sampled(2)

EARLIER = Path(__file__).parent.parent / "fixtures" / "earlier"
RUN = ("run", "--master", "none", "--until-drained", "--journal", "journal")
COUNTED = {"cat": 3, "dog": 2, "owl": 2, "emu": 2}
COUNTED_LATER = {**COUNTED, "cat": 5, "owl": 3, "yak": 1}


LEFT = [("f8de2f1", 2), ("72b3aa9", 3)]
"""The commits of the releases, and the format in which their stores have recorded batches."""


@pytest.fixture(params=LEFT)
def left(request: pytest.FixtureRequest) -> tuple[str, int]:
    """Which release has left it, and in which format of batches it is."""
    commit, batch_format = request.param
    return commit, batch_format


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: tuple[str, int]) -> str:
    """The current folder is a copy of what was left, the module its topology."""
    unpack(left[0], tmp_path)
    if left[1] == 1:
        record_as_the_first_format(tmp_path / "transactional.db")
    (tmp_path / "birds.py").write_text((EARLIER / "topology.py").read_text("utf-8"), "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "birds", raising=False)
    return "birds"


def counted() -> list[dict[str, int]]:
    """What each table has counted; the log's sums of letters, three a word."""
    merged = {row["word"]: row["count"] for row in DeltaTable("tables/merged").to_pyarrow_table().to_pylist()}
    letters: dict[str, int] = {}
    for row in DeltaTable("tables/log").to_pyarrow_table().to_pylist():
        if row["word"] is not None:
            letters[row["word"]] = letters.get(row["word"], 0) + row["total"]
    with closing(sqlite3.connect("states.db")) as connection:
        rows = dict(connection.execute("SELECT word, count FROM words"))
    return [merged, {word: total // 3 for word, total in letters.items()}, rows]


def test_it_is_verified_and_the_doctor_finds_nothing(command: Command) -> None:
    verified = command("verify", "{m}:first")
    assert (verified.code, verified.err) == (0, "")
    assert re.search(r"birds: nothing is wrong; .*\b3 transactions", verified.out), verified.out
    assert command("doctor", "{m}:first").out.endswith("birds: nothing is wrong\n")
    letters = command("deadletters", "{m}:first").out
    assert "poison" in letters
    assert counted() == [COUNTED] * 3


def test_its_journal_replays(module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from transactional.runtime.engine.history.journal import read_journal
    from transactional.runtime.engine.history.replay import replay

    events = list(read_journal("journal"))
    assert replay(events) == len(events) - 1


def record_as_the_first_format(store: Path) -> None:
    """The format before this release's: without the bytes of what was read. The rest of what it held is the same."""
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        found = connection.execute("SELECT attempt_id, batch FROM transactional_attempts").fetchall()
        for attempt_id, text in found:
            batch = json.loads(text)
            assert batch["version"] == 2
            batch["version"], batch["partitions"] = 1, [row[:6] for row in batch["partitions"]]
            change = "UPDATE transactional_attempts SET batch = ? WHERE attempt_id = ?"
            connection.execute(change, (json.dumps(batch), attempt_id))


def formats() -> dict[int, int]:
    """The number of attempts by format, in the store of the current folder."""
    with closing(sqlite3.connect("transactional.db")) as connection:
        query = (
            "SELECT json_extract(batch, '$.version') AS format, count(*) FROM transactional_attempts GROUP BY format"
        )
        return dict(connection.execute(query).fetchall())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("left", [("f8de2f1", 1), *LEFT], indirect=True)
def test_a_store_of_each_format_is_gone_on_with(command: Command, left: tuple[str, int]) -> None:
    """What is recorded from then on has the current format; the verifier reads both."""
    assert formats() == {left[1]: 5}
    done = command(*RUN, "{m}:later")
    assert done.code == 0, done.out + done.err
    assert formats() == Counter({left[1]: 5}) + Counter({METADATA_VERSION: 4})
    verified = command("verify", "{m}:later")
    assert re.search(r"birds: nothing is wrong; .*\b5 transactions", verified.out), verified.out
    assert counted() == [COUNTED_LATER] * 3
    done = command(*RUN, "{m}:later")
    assert "nothing was committed" in done.out or done.code == 0, done.out + done.err


def test_it_goes_on(command: Command) -> None:
    """With what has come since, over a tuple that is set aside, in the same tables, store and journal."""
    done = command(*RUN, "{m}:later")
    assert done.code == 0, done.out + done.err
    assert "the last is 5; 2 attempts failed" in done.out
    verified = command("verify", "{m}:later")
    assert re.search(r"birds: nothing is wrong; .*\b5 transactions", verified.out), verified.out
    assert "venom" in command("deadletters", "{m}:later").out
    assert counted() == [COUNTED_LATER] * 3


def test_what_is_lost_of_it_comes_back_by_its_journal(command: Command) -> None:
    Path("transactional.db").unlink()
    done = command("doctor", "{m}:first", "--repair", "--journal", "journal")
    assert "the store of topology 'birds' says again that transaction 3 is committed" in done.out, done.out + done.err
    assert command(*RUN, "{m}:later").code == 0
    assert counted() == [COUNTED_LATER] * 3
