"""A driver that has to leave does so, whatever hangs in its threads; and then nothing keeps its process alive."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import Future

import pytest

import transactional.runtime.engine.driver
from tests.unit.drivers import DRAINED, WAIT_S, Gate, World, in_background
from transactional.errors import Fenced
from transactional.model.plumbing.pools import DaemonPool, await_calls
from transactional.testing import ManualClock

STUCK = """
import threading
from tests.unit.drivers import DRAINED, World
from dataclasses import replace

world = World()
topology = world.topology()
world.states["counts"].before = lambda attempt: threading.Event().wait()
world.run(topology, replace(DRAINED, commit_timeout_ms=50))
"""

WORKS = """
import sys, threading, time
from transactional.model.plumbing.pools import DaemonPool

began = threading.Event()

def work():
    began.set()
    time.sleep(0.3)
    print("has ended")

DaemonPool(1, "compaction").submit(work)
began.wait()
sys.exit(7)
"""
HANGS = """
import threading
from transactional.operations.cli import main
from transactional.model.plumbing import pools

began = threading.Event()

def hang():
    began.set()
    threading.Event().wait()

pools.DaemonPool(1, "compaction").submit(hang)
began.wait()
pools.ENDING_S = 0.1

def app():
    print("shown")
    raise SystemExit(7)

main.app = app
main.main()
"""


def test_a_fenced_driver_leaves_although_its_commit_phase_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactional.runtime.engine.driver, "LEAVING_S", 0.1)
    world, gate, clock = World(), Gate(), ManualClock()
    topology = world.topology()

    def hang_once(attempt: object) -> None:
        if not gate.entered.is_set():
            gate.pass_through()

    world.states["counts"].before = hang_once
    first = world.driver(topology, owner="a", clock=clock)
    with in_background(first) as running:
        gate.wait_until_entered()
        # The same owner may take its lease again; that is how this store lets a lease end.
        assert world.driver(owner="a").run().transactions == 3
        clock.advance(DRAINED.lease_ms)
        with pytest.raises(Fenced):
            running.result(WAIT_S / 2)
        assert not gate.opened.is_set()
    gate.opened.set()
    first.runner._commits.shutdown()


def test_what_hangs_does_not_keep_the_process_alive() -> None:
    ended = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 1
    assert "CommitStuck: the commit phase of 1:" in ended.stderr.splitlines()[-1]


def ended(program: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    return done.returncode, done.stdout, done.stderr


def test_a_process_does_not_end_in_the_middle_of_a_call() -> None:
    """Which may be one of delta-rs: where the interpreter ends its thread, the process crashes."""
    assert ended(WORKS) == (7, "has ended\n", "")


def test_a_command_whose_threads_hang_ends_with_its_exit_code() -> None:
    assert ended(HANGS) == (7, "shown\n", "")


# --- the threads ---------------------------------------------------------------------------------------------------


def test_calls_are_made_in_order_by_as_many_threads_as_are_wanted() -> None:
    pool, done, threads = DaemonPool(1, "one"), list[int](), set[str]()

    def call(number: int) -> None:
        done.append(number)
        threads.add(threading.current_thread().name)

    futures = [pool.submit(call, number) for number in range(100)]
    pool.shutdown()
    assert (done, threads) == (list(range(100)), {"one_0"})
    assert all(future.done() for future in futures)


def test_an_error_of_a_call_is_its_futures_and_the_thread_goes_on() -> None:
    pool = DaemonPool(1, "one")

    def fail() -> None:
        raise KeyboardInterrupt

    failed, later = pool.submit(fail), pool.submit(lambda: None)
    with pytest.raises(KeyboardInterrupt):
        failed.result(WAIT_S)
    later.result(WAIT_S)
    pool.shutdown()


def test_what_has_not_begun_can_be_cancelled_and_what_hangs_is_left() -> None:
    pool, gate = DaemonPool(1, "one"), Gate()
    hangs, waits = pool.submit(gate.pass_through), pool.submit(lambda: None)
    told: list[Future[None]] = []
    waits.add_done_callback(told.append)
    gate.wait_until_entered()
    assert not await_calls(wait_s=0)
    pool.shutdown(wait_s=0, cancel=True)
    assert (waits.cancelled(), told, hangs.done()) == (True, [waits], False)
    gate.opened.set()
    hangs.result(WAIT_S)
    assert await_calls(WAIT_S)
