"""A disk that takes no more, where tasks write: an outage, told in one line, which ends when there is room again."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.integration.faults.full_outbox import WORDS
from tests.integration.kafka_topics import new_topic
from tests.integration.programs import Program
from tests.integration.signals import Gate
from tests.integration.sinks.publications import visible_records


def test_a_run_waits_until_there_is_room_on_the_disk(tmp_path: Path, gate: Gate) -> None:
    """Mounts a disk in a namespace of its own: anybody may where `unshare --map-root-user --mount true` works, else
    root."""
    namespace = ["unshare", "--map-root-user", "--mount"]
    with Program([*namespace, sys.executable, "-m", "tests.integration.faults.full_disk"], tmp_path) as program:
        told = program.await_line(r"attempt 1:\d+ failed in .*").string
        assert "No space left on device" in told
        assert f"{tmp_path}/counts/_staged" in told
        gate.open()
        assert program.wait() == 0, program.text


def test_tables_on_a_disk_that_is_full_forbidden_or_read_only_are_exact(tmp_path: Path) -> None:
    """Where each write of a transaction, one after the other, is the one that finds no room."""
    namespace = ["unshare", "--map-root-user", "--mount", "setpriv", "--bounding-set=-dac_override"]
    module = "tests.integration.faults.hindered_tables"
    with Program([*namespace, sys.executable, "-m", module], tmp_path) as program:
        assert program.wait() == 0, program.text
        assert len(set(re.findall(r"full but for \d pages|not to be written", program.text))) >= 5, program.text
        assert {*re.findall(r"(\w+) read-only: ", program.text)} == {"tables", "merge", "log"}, program.text


@pytest.mark.kafka
@pytest.mark.long("a program over a broker; unit tests refuse each write of a payload file")
@pytest.mark.parametrize(
    ("pages", "line"),
    [
        (0, r"the run has ended \(failed\) with TX\d+: the coordinator's store .*database or disk is full"),
        (60, r"attempt \d:\d+ failed in committing: TX300 the outbox can't write a file .*No space left on device"),
    ],
)
def test_a_full_disk_under_store_and_outbox_loses_no_record(
    bootstrap: str, tmp_path: Path, gate: Gate, pages: int, line: str
) -> None:
    """Without a page the store has no room, and ends the run; with 60 only the files of payloads have none."""
    topic = new_topic(bootstrap)
    command = ["unshare", "--map-root-user", "--mount", sys.executable, "-m", "tests.integration.faults.full_outbox"]
    with Program([*command, bootstrap, topic, str(pages)], tmp_path) as program:
        try:
            program.await_line(line)
        finally:
            gate.open()
        assert program.wait() == 0, program.text
    assert [seen.value["word"] for seen in visible_records(bootstrap, topic, 1)] == WORDS


@pytest.mark.long("a program; unit tests refuse the write of an entry")
@pytest.mark.parametrize("pages", [0, 5])
def test_a_full_disk_under_the_table_of_a_sink_loses_no_row(tmp_path: Path, gate: Gate, pages: int) -> None:
    """Without a page no file can be staged; with some the Delta commit or the checkpoint may be what has no room."""
    command = ["unshare", "--map-root-user", "--mount", sys.executable, "-m", "tests.integration.faults.full_sink"]
    with Program([*command, str(pages)], tmp_path) as program:
        try:
            program.await_line(
                rf"(failed in committing|waits since|no checkpoint).* {tmp_path}/disk/events.*No space left"
            )
        finally:
            gate.open()
        assert program.wait() == 0, program.text
