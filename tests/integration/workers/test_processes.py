"""Worker processes that crash, stop, run out of memory, leave, print, and lose their driver."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spouts import MemoryTransactionalSpout
from state import DeltaMapState, MemoryMapState
from tests.integration.signals import Signals, has_ended, send
from tests.integration.tables import counts
from tests.integration.workers.bolts import (
    WAYS,
    CountsWords,
    Falls,
    NotesItsEnd,
    Says,
    Unloadable,
    answer_twice,
    fork,
    fork_unnoticed,
    hashes,
)
from tests.integration.workers.test_executors import FIRST, SECOND, OneBolt, pids
from tests.tidy.files import ROOT
from tests.unit.fakes import WORD_COUNTS, WORDS
from transactional import (
    ConfigError,
    TopologyConfig,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    TxId,
)
from transactional.bolts import Bolt
from transactional.errors import AttemptLost, BoltFailed, TuplesLost, WorkerDied
from transactional.model.attempt import AttemptId
from transactional.reliable import TopologyBuilder
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.workers import pool
from transactional.runtime.executors.workers.executor import WorkerExecutor
from transactional.runtime.executors.workers.process import WorkerProcess
from transactional.testing import MemoryCoordinatorStore

PROCESSES = 2


@pytest.fixture
def one_bolt() -> Iterator[Callable[[Bolt], OneBolt]]:
    """Makes an executor with a bolt."""
    with ExitStack() as opened:
        yield lambda bolt: OneBolt(lambda topology: WorkerExecutor(topology, processes=PROCESSES), bolt, opened)


OneBoltMaker = Callable[[Bolt], OneBolt]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("place", ["prepare", "execute"])
@pytest.mark.parametrize("way", WAYS)
def test_an_attempt_whose_process_ends_is_lost_and_the_next_one_works(
    one_bolt: OneBoltMaker, tmp_path: Path, way: str, place: str
) -> None:
    fall, how = WAYS[way]
    one = one_bolt(Falls(str(tmp_path / "flag"), fall, place))
    with pytest.raises(WorkerDied, match=f"worker process \\d+ {how} in tasks [01] of .*'bolt', attempt 1") as died:
        one.start(FIRST).result(60)
    assert died.value.code == "TX311"
    assert not died.value.is_outage
    assert one.start(SECOND).result(60).counts["bolt"] == 19


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt])
def test_what_python_raises_to_leave_fails_the_attempt_and_ends_no_process(
    one_bolt: OneBoltMaker, tmp_path: Path, raised: type[BaseException]
) -> None:
    def fall() -> None:
        raise raised

    one = one_bolt(Falls(str(tmp_path / "flag"), fall, "execute"))
    assert isinstance(one.executor, WorkerExecutor)
    before = one.executor.pool.pids
    with pytest.raises(BoltFailed, match=f"component 'bolt' raised {raised.__name__}"):
        one.start(FIRST).result(60)
    assert one.start(SECOND).result(60).counts["bolt"] == 19
    assert one.executor.pool.pids == before


def test_one_that_is_stopped_is_killed_when_its_attempt_is_cancelled(
    one_bolt: OneBoltMaker, tmp_path: Path, signals: Signals
) -> None:
    pipe = signals.pipe

    def stop() -> None:
        send(pipe, f"running {os.getpid()}")
        os.kill(os.getpid(), signal.SIGSTOP)

    one = one_bolt(Falls(str(tmp_path / "flag"), stop, "execute"))
    first = one.start(FIRST)
    [stopped] = pids(signals, 1)
    one.executor.cancel(FIRST)
    with pytest.raises(AttemptLost, match="cancelled"):
        first.result(60)
    assert has_ended(stopped)
    assert one.start(SECOND).result(60).counts["bolt"] == 19


def test_one_that_has_ended_between_two_attempts_is_replaced(one_bolt: OneBoltMaker) -> None:
    """Nothing was sent to it, so nothing is lost."""
    one = one_bolt(Says())
    assert isinstance(one.executor, WorkerExecutor)
    before = one.executor.pool.pids
    for pid in before:
        os.kill(pid, signal.SIGKILL)
        assert has_ended(pid)
    assert one.start(FIRST).result(60).counts["bolt"] == 19
    assert not set(one.executor.pool.pids) & set(before)


def test_an_attempt_for_which_no_process_can_be_started_is_lost(
    one_bolt: OneBoltMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the one after it works, if one can be started again."""
    one = one_bolt(Says())
    assert isinstance(one.executor, WorkerExecutor)

    def refused(program: bytes) -> WorkerProcess:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(pool, "WorkerProcess", refused)
        os.kill(one.executor.pool.pids[1], signal.SIGKILL)
        assert has_ended(one.executor.pool.pids[1])
        for attempt in (FIRST, SECOND):
            with pytest.raises(AttemptLost, match=r"a worker process can't be started for tasks 1 of .*Cannot alloc"):
                one.start(attempt).result(60)
    assert one.start(SECOND).result(60).counts["bolt"] == 19


def test_what_a_bolt_has_started_ends_with_its_process(
    one_bolt: OneBoltMaker, tmp_path: Path, signals: Signals
) -> None:
    """Also where it keeps the socket open, as a fork does."""
    pipe = signals.pipe

    def fork() -> None:
        if not (child := os.fork()):
            signal.pause()
        send(pipe, f"running {child}")
        os._exit(1)

    one = one_bolt(Falls(str(tmp_path / "flag"), fork, "execute"))
    with pytest.raises(AttemptLost, match="has exited with code 1"):
        one.start(FIRST).result(60)
    [child] = pids(signals, 1)
    assert has_ended(child)


@pytest.mark.parametrize("place", ["prepare", "execute"])
@pytest.mark.parametrize("how", [fork, fork_unnoticed])
def test_a_process_that_a_bolt_has_forked_and_that_returns_from_it_answers_nothing(
    one_bolt: OneBoltMaker, tmp_path: Path, how: Callable[[], Any], place: str
) -> None:
    one = one_bolt(Falls(str(tmp_path / "flag"), how, place))
    for attempt in (FIRST, SECOND, replace(SECOND, attempt_id=AttemptId(3))):
        assert one.start(attempt).result(60).counts["bolt"] == 19


def test_an_answer_counts_only_for_the_request_that_it_belongs_to(tmp_path: Path) -> None:
    bolt = Falls(str(tmp_path / "flag"), answer_twice, "execute")
    with ExitStack() as opened:
        one = OneBolt(lambda topology: WorkerExecutor(topology, processes=1), bolt, opened)
        with pytest.raises(TuplesLost, match="tasks were to report"):
            one.start(FIRST).result(60)
        with pytest.raises(AttemptLost, match=r"worker process \d+ has answered request 1 where 2 was sent"):
            one.start(SECOND).result(60)
        assert one.start(replace(SECOND, attempt_id=AttemptId(3))).result(60).counts["bolt"] == 19


def test_what_a_bolt_counts_comes_from_its_process_and_not_from_one_that_was_killed(
    one_bolt: OneBoltMaker, tmp_path: Path
) -> None:
    one = one_bolt(CountsWords(str(tmp_path / "flag")))
    with pytest.raises(AttemptLost):
        one.start(FIRST).result(60)
    assert one.start(SECOND).result(60).counted == {("bolt", "seen"): 19}


def test_what_bolts_print_goes_to_stderr(one_bolt: OneBoltMaker, capfd: pytest.CaptureFixture[str]) -> None:
    one = one_bolt(Says())
    assert one.start(FIRST).result(60).counts["bolt"] == 19
    one.executor.close()  # which flushes
    out, err = capfd.readouterr()
    assert out == ""
    assert {"said cat", "told cat", "written"} <= set(err.splitlines())


def test_hashes_are_those_of_sparks_workers() -> None:
    """A program that divides by `hash` divides a replay alike, wherever it runs."""
    spout = MemoryTransactionalSpout(WORDS, fields="word string", take=9)
    builder = TransactionalTopologyBuilder("words", "words", spout, 1)
    builder.set_bolt("hashes", hashes, output="word string, hash long").shuffle_grouping("words")
    state = MemoryMapState("word")
    builder.set_committer_bolt("max", state.max("hash")).shuffle_grouping("hashes")
    topology = builder.build()
    run(topology)
    code = f"print({{word: hash(word) for word in {sorted(WORD_COUNTS)!r}}})"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=True
    )
    assert {row["word"]: row["max_hash"] for row in state.read().to_pylist()} == eval(done.stdout)


def run(topology: Any, **config: Any) -> Any:
    """A run of a topology in workers."""
    executor = WorkerExecutor(topology, processes=PROCESSES)
    options = TopologyConfig(**{"stop_when_drained": True, "retry_pause_ms": 1, **config})
    return TopologyDriver(topology, MemoryCoordinatorStore(), executor, options).run()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("take", [1, 3])
def test_a_run_whose_processes_fall_counts_every_tuple_once(tmp_path: Path, take: int) -> None:
    spout = MemoryTransactionalSpout(WORDS, fields="word string", take=take)
    builder = TransactionalTopologyBuilder("words", "words", spout, 2)
    last = "words"
    for number, (way, (fall, _)) in enumerate(WAYS.items()):
        bolt = Falls(str(tmp_path / way), fall, "execute" if number % 2 else "prepare")
        builder.set_bolt(way, bolt, 2).fields_grouping(last, "word")
        last = way
    state = DeltaMapState(tmp_path / "counts", key="word")
    builder.set_committer_bolt("count", state.count()).fields_grouping(last, "word")
    summary = run(builder.build(), max_spout_pending=3)
    assert summary.failures >= len(WAYS)
    assert counts(tmp_path / "counts", "word") == WORD_COUNTS


def test_a_hundred_partitions_are_read_by_two_processes(tmp_path: Path) -> None:
    spout = MemoryTransactionalSpout([[(f"w{at}",), ("all",)] for at in range(100)], fields="word string", take=1)
    builder = TransactionalTopologyBuilder("words", "words", spout, 100)
    state = MemoryMapState("word")
    builder.set_committer_bolt("count", state.count()).fields_grouping("words", "word")
    run(builder.build())
    assert {row["word"]: row["count"] for row in state.read().to_pylist()} == {
        **{f"w{at}": 1 for at in range(100)},
        "all": 100,
    }


DRIVER = """
    import os, signal, sys
    from spouts import MemoryTransactionalSpout
    from state import MemoryMapState
    from transactional import TransactionalTopologyBuilder, TransactionAttempt, TxId
    from transactional.model.attempt import AttemptId
    from transactional.model.batch import EMPTY_BATCH
    from transactional.runtime.executors.workers.executor import WorkerExecutor

    def hangs(row):
        signal.pause()

    spout = MemoryTransactionalSpout([[("cat",)], [("dog",)]], fields="word string", take=1)
    builder = TransactionalTopologyBuilder("words", "words", spout, 2)
    builder.set_bolt("hangs", hangs, 2, output="word string").local_or_shuffle_grouping("words")
    builder.set_committer_bolt("count", MemoryMapState("word").count()).shuffle_grouping("hangs")
    topology = builder.build()
    executor = WorkerExecutor(topology, processes=2)
    executor.open()
    print(*executor.pool.pids, flush=True)
    executor.run(TransactionAttempt(TxId(1), AttemptId(1)), topology.spout.plan(EMPTY_BATCH, replay=False))
"""


def test_a_driver_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    """Whatever they are doing: stopped ones, too."""
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(DRIVER))
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    driver = subprocess.Popen([sys.executable, str(script)], env=env, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    with driver.stdout:
        workers = [int(pid) for pid in driver.stdout.readline().split()]
    assert len(workers) == PROCESSES
    os.kill(workers[0], signal.SIGSTOP)
    driver.kill()
    driver.wait()
    assert [has_ended(pid) for pid in workers] == [True, True]


def test_nothing_is_left_when_it_is_closed(one_bolt: OneBoltMaker) -> None:
    one = one_bolt(Says())
    assert isinstance(one.executor, WorkerExecutor)
    workers = one.executor.pool.pids
    one.executor.close()
    assert [has_ended(pid) for pid in workers] == [True, True]


def test_bolts_that_a_process_can_not_load_are_reported_at_the_start() -> None:
    spout = MemoryTransactionalSpout(WORDS, fields="word string", take=9)
    builder = TransactionalTopologyBuilder("words", "words", spout, 2)
    builder.set_bolt("bolt", Unloadable(), 2, output="word string").shuffle_grouping("words")
    builder.set_committer_bolt("count", MemoryMapState("word").count()).shuffle_grouping("bolt")
    executor = WorkerExecutor(builder.build(), processes=PROCESSES)
    with pytest.raises(ConfigError, match=r"can't load the topology's bolts: ModuleNotFoundError: No module named 'on"):
        executor.open()


def test_a_topology_that_needs_spark_is_refused_by_name() -> None:
    def frame(frame: DataFrame) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    spout = MemoryTransactionalSpout(WORDS, fields="word string", take=9)
    builder = TransactionalTopologyBuilder("words", "words", spout, 2)
    builder.set_bolt("frame", frame, 2, output="word string").shuffle_grouping("words")
    builder.set_committer_bolt("count", MemoryMapState("word").count()).shuffle_grouping("frame")
    with pytest.raises(ConfigError, match=r"topology 'words' can't run in workers: bolt 'frame' works on a Spark Data"):
        WorkerExecutor(builder.build())


def test_attempts_work_in_the_order_in_which_they_came(one_bolt: OneBoltMaker) -> None:
    one = one_bolt(Says())
    attempts = [TransactionAttempt(TxId(at), AttemptId(at)) for at in range(1, 9)]
    assert [one.start(attempt).result(60).counts["bolt"] for attempt in attempts] == [19] * 8


@pytest.mark.long("two processes that only come up and end")
def test_each_process_closes_the_sinks_to_which_it_sends(tmp_path: Path) -> None:
    builder = TopologyBuilder("words", guarantee="at-least-once")
    builder.set_spout("words", MemoryTransactionalSpout(WORDS, fields="word string", take=9))
    builder.set_sink("sent", NotesItsEnd(tmp_path / "closed"), 2).shuffle_grouping("words")
    executor = WorkerExecutor(builder.build(), processes=PROCESSES)
    executor.open()
    processes = set(executor.pool.pids)
    executor.close()
    assert {int(line) for line in (tmp_path / "closed").read_text().split()} == processes
