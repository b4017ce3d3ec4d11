"""Joined windows are made again by `transactional verify --windows`, and taken back by `transactional rewind`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tests.unit.command_line import RUN, Command

TOPOLOGY = '''
"""Orders with their payments, five minutes each."""

from datetime import UTC, datetime, timedelta

from spouts.memory import OpaqueMemoryTransactionalSpout
from state import DeadLetterTable, DeltaMapState
from transactional.trident import TridentTopology, tumbling

NOON = datetime(2020, 5, 1, 12, tzinfo=UTC)


def source(what):
    rows = [(n % 4, n, NOON + timedelta(minutes=n)) for n in range(20)]
    return OpaqueMemoryTransactionalSpout([rows], f"id long, {what} long, {what}_at timestamp", take=5)


def build():
    topology = TridentTopology("paid")
    orders = topology.new_stream("orders", source("ordered"), event_time="ordered_at")
    payments = topology.new_stream("payments", source("paid"), event_time="paid_at").filter(lambda row: row.paid % 3)
    sides = (orders, "id"), (payments, "id")
    window = tumbling("5 minutes")
    joined = topology.join(*sides, how="left", window=window, state=DeltaMapState("open"), name="open")
    joined.closed().persist(DeltaMapState("closed", ("ordered", "paid")), name="closed")
    topology.set_dead_letters(DeadLetterTable("letters"))
    return topology.build(strict=True, config={"attempts_max": 2})
'''


def rows() -> list[dict[str, Any]]:
    """What was joined."""
    found = DeltaTable("closed").to_pyarrow_table().select(["id", "ordered", "paid", "window_start"]).to_pylist()
    return sorted(found, key=str)


def test_joined_windows_are_made_again_and_taken_back(command: Command) -> None:
    Path("paid.py").write_text(TOPOLOGY)
    assert command(*RUN, "paid:build").code == 0
    before = rows()
    assert {row["paid"] is None for row in before} == {True, False}
    verified = command("verify", "paid:build", "--windows")
    assert (verified.code, "nothing is wrong" in verified.out) == (0, True), verified.out

    assert command("rewind", "paid:build", "--to-txid", "2", "--yes").code == 0
    assert len(rows()) < len(before)
    assert command(*RUN, "paid:build").code == 0
    assert rows() == before
    assert command("verify", "paid:build", "--windows").code == 0

    DeltaTable("closed").update({"paid_at": "NULL"}, predicate="ordered = 1")
    verified = command("verify", "paid:build", "--windows")
    assert verified.code == 1
    assert "closed" in verified.out
