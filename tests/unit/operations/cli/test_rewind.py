"""`transactional rewind`: what it shows, what it does, and how a topology tells of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.unit.command_line import RUN, Command
from tests.unit.runtime.publishing.word_sink import TARGETS, Target
from transactional.errors import RecordRefused

WORDS = """
from spouts import MemoryTransactionalSpout
from state import DeltaMapState
from transactional import TransactionalTopologyBuilder


def build():
    spout = MemoryTransactionalSpout([[(word,) for word in "abcab"]], fields="word string", take=1)
    builder = TransactionalTopologyBuilder("words", "spout", spout)
    counts = DeltaMapState("counts", key="word").count()
    builder.set_committer_bolt("count", counts).fields_grouping("spout", "word")
    return builder.build()
"""


def test_it_shows_what_would_go_back_and_then_takes_it_back(command: Command) -> None:
    Path("counted.py").write_text(WORDS)
    command(*RUN, "counted:build")
    shown = command("rewind", "counted:build", "--to-txid", "2")
    assert (shown.code, shown.err) == (0, "")
    first, table, source, last = shown.out.splitlines()
    assert first == "topology 'words': from transaction 5 back to 2"
    assert table.startswith("  count: Delta table ")
    assert source == "  memory[0]: read again from offset 2; it had been read up to 5"
    assert last == "nothing was changed. Pass --yes to do it"
    done = command("rewind", "counted:build", "--to-txid", "2", "--yes")
    assert (done.code, done.out.splitlines()[-1]) == (0, "done: the next run begins with transaction 3")
    [known] = map(json.loads, command("status", "--json").out.splitlines())
    assert (known["committed_txid"], known["state"], known["rewinding_to"]) == (2, "rewound", None)
    assert re.search(r"^words: it was taken back 20.*, from transaction 5 back to 2$", command("status").out, re.M)
    looked = command("doctor", "counted:build")
    assert looked.code == 0
    assert "table-rewound: table of 'count' (" in looked.out
    assert "has taken it back to transaction 2\n" in looked.out
    assert "words: nothing is wrong" in looked.out
    assert [json.loads(line)["phase"] for line in command("txns", "words", "--json").out.splitlines()] == [
        *(["rewound"] * 3),
        *(["committed"] * 2),
    ]
    assert "3 transactions committed, the last is 5" in command(*RUN, "counted:build").out


def test_a_journal_is_told_so_that_the_doctor_can_restore_the_store(command: Command) -> None:
    Path("counted.py").write_text(WORDS)
    command(*RUN, "counted:build", "--journal", "words.journal")
    assert command("rewind", "counted:build", "--to-txid", "2", "--yes", "--journal", "words.journal").code == 0
    for file in Path.cwd().glob("*.db*"):
        file.unlink()
    done = command("doctor", "counted:build", "--repair", "--journal", "words.journal")
    assert "repaired: the store of topology 'words' says again that transaction 2 is committed" in done.out
    assert "3 transactions committed, the last is 5" in command(*RUN, "counted:build").out


QUEUE = """
from transactional.reliable import QueueSpout, TopologyBuilder


class Letters(QueueSpout):
    output = "letter string"

    def open(self, instance, instances, collector):
        self.collector, self.waiting = collector, ["a", "b"]

    def next_tuple(self):
        if self.waiting:
            self.collector.emit(self.waiting.pop(0), message_id=len(self.waiting))


def build():
    builder = TopologyBuilder("letters", guarantee="at-least-once")
    builder.set_spout("letters", Letters())
    builder.set_bolt("bolt", lambda row: (row.letter,), output="letter string").shuffle_grouping("letters")
    return builder.build()
"""


def test_what_a_queue_has_handed_out_can_not_be_read_again(command: Command) -> None:
    Path("queued.py").write_text(QUEUE)
    assert "1 transactions committed" in command(*RUN, "queued:build").out
    for arguments in (("rewind", "queued:build", "--to-txid", "0", "--yes"), ("savepoint", "queued:build", "noon")):
        refused = command(*arguments)
        assert (refused.code, refused.out) == (1, "")
        [line] = refused.err.splitlines()
        assert line.startswith("TX100: spout 'letters' is a queue that hands a message out once, so nothing can be ")
    assert 'committed_txid": 1' in command("status", "--json").out


def test_a_journal_of_letters_is_kept_so_that_the_doctor_can_restore_the_store(command: Command) -> None:
    Path("aside.py").write_text(LETTERS)
    command(*RUN, "aside:build", "--journal", "aside.journal")
    replayed = command("deadletters", "aside:mended", "--replay", "--master", "none", "--journal", "aside.journal")
    assert replayed.out == "1 transactions of dead letters committed, the last is 2\n"
    for file in Path.cwd().glob("*.db*"):
        file.unlink()
    done = command("doctor", "aside:build", "--repair", "--journal", "aside.journal")
    assert "repaired: the store of topology 'words' says again that transaction 2 is committed" in done.out
    assert "0 transactions of dead" in command("deadletters", "aside:mended", "--replay", "--master", "none").out


LETTERS = """
from spouts import MemoryTransactionalSpout
from state import DeadLetterTable, DeltaMapState
from transactional import TransactionalTopologyBuilder


def build(disliked="b"):
    def like(row):
        assert row.word != disliked
        return (row.word,)

    spout = MemoryTransactionalSpout([[("a",), ("b",)]], "word string", 2)
    builder = TransactionalTopologyBuilder("words", "spout", spout)
    builder.set_bolt("like", like, output="word string").shuffle_grouping("spout")
    builder.set_committer_bolt("count", DeltaMapState("counts", key="word").count()).fields_grouping("like", "word")
    builder.set_dead_letters(DeadLetterTable("letters"))
    return builder.build(config={"attempts_max": 1})


def mended():
    return build(None)
"""


def test_what_can_not_go_back_is_one_line(command: Command) -> None:
    command(*RUN, "{m}:topology")
    refused = command("rewind", "{m}:topology", "--to-txid", "1", "--yes")
    assert (refused.code, refused.out) == (1, "")
    [line] = refused.err.splitlines()
    assert "TX100: committer 'count' of topology 'words' can't be taken back: a MemoryMapState keeps nothing" in line
    noted = command("savepoint", "{m}:topology", "noon", "--txid", "1")
    assert (noted.code, noted.out, noted.err) == (1, "", refused.err)
    assert command("savepoint", "{m}:topology").out == ""


def test_a_savepoint_is_noted_shown_gone_back_to_and_dropped(command: Command) -> None:
    Path("counted.py").write_text(WORDS)
    command(*RUN, "counted:build")
    noted = command("savepoint", "counted:build", "noon", "--txid", "3")
    assert (noted.code, noted.out) == (0, "savepoint 'noon' of topology 'words': transaction 3\n")
    assert command("savepoint", "counted:build").out.startswith("noon: transaction 3, noted at 20")
    done = command("rewind", "counted:build", "--to-savepoint", "noon", "--yes")
    assert (done.code, done.out.splitlines()[-1]) == (0, "done: the next run begins with transaction 4")
    unknown = command("rewind", "counted:build", "--to-savepoint", "nono")
    assert (unknown.code, "has no savepoint 'nono'; it has: 'noon'" in unknown.err) == (1, True)
    assert command("savepoint", "counted:build", "noon", "--drop").code == 0
    assert command("savepoint", "counted:build").out == ""
    assert command("savepoint", "counted:build", "noon", "--drop").code == 1
    assert command("savepoint", "counted:build", "late", "--txid", "9").code == 1
    assert "one of them" in command("rewind", "counted:build").err


PUBLISHED = """
from spouts import MemoryTransactionalSpout
from tests.unit.runtime.publishing.word_sink import WordSink
from transactional import TransactionalTopologyBuilder


def build():
    spout = MemoryTransactionalSpout([[(word,) for word in "abcab"]], fields="word string", take=1)
    builder = TransactionalTopologyBuilder("words", "spout", spout)
    builder.set_sink("alerts", WordSink("words")).shuffle_grouping("spout")
    return builder.build()
"""


def test_sinks_are_listed_accepted_set_aside_and_dropped(command: Command) -> None:
    """Whatever changes something shows it first, and does it with an option of its own."""
    TARGETS["words"] = target = Target()
    Path("publishing.py").write_text(PUBLISHED)
    command(*RUN, "publishing:build")
    assert command("sinks", "list", "words").out == "alerts: published up to transaction 5; nothing waits\n"
    refused = command("rewind", "publishing:build", "--to-txid", "2", "--yes")
    assert (refused.code, "pass --accept-sent if readers can stand that" in refused.err) == (1, True)
    shown = command("rewind", "publishing:build", "--to-txid", "2").out.splitlines()
    assert shown[-1] == "nothing was changed. Pass --yes --accept-sent to do it"
    assert command("rewind", "publishing:build", "--to-txid", "2", "--yes", "--accept-sent").code == 0
    target.errors = [RecordRefused("no")]
    assert command(*RUN, "publishing:build").code == 1
    [listed] = map(json.loads, command("sinks", "list", "words", "--json").out.splitlines())
    assert (listed["sink"], listed["published_txid"], listed["set_aside_records"]) == ("alerts", None, 0)
    assert listed["waiting_transactions"] >= 1
    unsent = command("reset", "words", "--yes")
    assert (unsent.code, "pass --drop-unsent" in unsent.err) == (1, True)
    aside = command("sinks", "set-aside", "publishing:build", "alerts", "--txid", "3")
    assert (aside.code, aside.out) == (0, "alerts: 1 record of transaction 3 set aside\n")
    assert "1 records set aside" in command("sinks", "list", "words").out
    accepted = ("sinks", "accept", "publishing:build", "alerts", "--at", "3")
    assert "nothing was changed. Pass --accept-sent" in command(*accepted).out
    assert "continues after transaction 3" in command(*accepted, "--accept-sent").out
    assert "settled up to transaction 3 by an operator" in command("sinks", "list", "words").out
    assert "nothing was changed. Pass --accept-loss" in command("sinks", "drop", "words", "alerts").out
    assert command("sinks", "drop", "words", "alerts", "--accept-loss").code == 0
    assert command("sinks", "list", "words").out == ""
    assert command("sinks", "drop", "words", "alerts").code == 1
    assert command("sinks", "accept", "publishing:build", "others", "--at", "3").code == 1
