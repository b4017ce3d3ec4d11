"""`transactional query` and `read`: what they print, and how they end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.unit.command_line import RUN, Command

MODULE = '''
"""A word count that may be asked."""

from spouts.memory import MemoryTransactionalSpout
from state.delta.state import DeltaMapState
from transactional.trident import Count, Sum, TridentTopology

def build():
    topology = TridentTopology("asked")
    rows = [[("cat", 1), ("dog", 2)], [("cat", 3)]]
    pairs = topology.new_stream("pairs", MemoryTransactionalSpout(rows, "word string, n int", take=1))
    counts = pairs.group_by("word").persistent_aggregate(DeltaMapState("words"), count=Count(), total=Sum("n"))
    pairs.group_by("n").persistent_aggregate(DeltaMapState("sizes"), count=Count())

    @topology.query("count_of", "word string, at_least long")
    def count_of(questions):
        return questions.state_query(counts, on="word").filter(lambda row: row["count"] >= row.at_least)

    return topology.build(strict=True)
'''


@pytest.fixture
def asked(command: Command) -> Command:
    """A topology that has run, as module `asked`."""
    Path("asked.py").write_text(MODULE)
    sys.modules.pop("asked", None)
    assert command(*RUN, "asked:build").code == 0
    return command


def test_a_question(asked: Command) -> None:
    """Its answer is a line of JSON per tuple, and as of a transaction."""
    done = asked("query", "asked:build", "count_of", "cat", "1")
    assert done.code == 0
    assert json.loads(done.out) == {"word": "cat", "at_least": 1, "count": 2, "total": 4}
    assert done.err == "as of transaction 2\n"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            ["count", "cat"],
            "TX100: there is no query 'count'; there are: count_of(word string, at_least long) — did you",
        ),
        (["count_of", "cat"], "TX100: query 'count_of' takes 2 values, 'word string, at_least long'; got 1"),
        (["count_of", "cat", "x"], "TX100: query 'count_of': 'x' is no long, which field 'at_least' is"),
        (["count_of", "emu", "1"], "TX500: query 'count_of': task 0 of 1: component"),
    ],
)
def test_mistakes_and_failures(asked: Command, given: list[str], told: str) -> None:
    """One line each."""
    done = asked("query", "asked:build", *given)
    assert done.code != 0
    assert done.err.startswith(told)
    assert done.err.count("\n") == 1


def test_tables_as_of_a_transaction(asked: Command) -> None:
    """All of them as of the same one, by default the newest."""
    done = asked("read", "asked:build", "--table", "words")
    assert sorted(json.loads(line)["word"] for line in done.out.splitlines()) == ["cat", "dog"]
    assert done.err == "as of transaction 2\n"
    done = asked("read", "asked:build", "--as-of", "1")
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [row["row"] for row in rows if row["table"] == "words"] == [{"word": "cat", "count": 2, "total": 4}] or len(
        rows
    ) == 4
    assert done.err == "as of transaction 1\n"
    for given, told in (
        (["--as-of", "9"], "TX100: topology 'asked' has committed transaction 2, so it can't be read as of 9"),
        (["--table", "word"], "TX100: there is no table 'word'; there are: words, sizes — did you mean 'words'?"),
    ):
        assert asked("read", "asked:build", *given).err.startswith(told)


def test_before_anything_has_run(command: Command) -> None:
    """The store is not made by asking."""
    Path("asked.py").write_text(MODULE)
    sys.modules.pop("asked", None)
    done = command("query", "asked:build", "count_of", "cat", "1")
    assert "there is no store at" in done.err
    assert not list(Path().glob("*.db"))
    assert not Path("words").exists()


@pytest.mark.long("the same server in this process: tests/unit/operations/queries")
def test_queries_are_served_until_it_is_interrupted(asked: Command) -> None:
    """Whoever has the token that is printed is answered."""
    program = [sys.executable, "-m", "transactional", "serve", "asked:build", "--port", "0"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        address, token = process.stdout.readline().split()[4].rstrip(","), process.stdout.readline().split()[-1]
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        request = urllib.request.Request(f"{address}count_of/cat/1", headers={"Authorization": f"Bearer {token}"})
        with opener.open(request, timeout=30) as answer:
            assert json.load(answer)["rows"] == [{"word": "cat", "at_least": 1, "count": 2, "total": 4}]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            opener.open(f"{address}count_of/cat/1", timeout=30)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in (0, 130, -signal.SIGINT)
        assert "Traceback" not in process.stderr.read()


def test_what_can_not_be_served_is_one_line(asked: Command, command: Command) -> None:
    done = asked("serve", "asked:build", "--host", "0.0.0.0")
    assert (done.code, "the server of queries would be reachable" in done.err) == (1, True)
    done = command("serve", "{m}:build")
    assert "topology 'words' has no query: declare one with @topology.query" in done.err
