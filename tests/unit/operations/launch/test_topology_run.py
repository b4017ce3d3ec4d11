"""`TopologyRun`: the handle of a run in this process, from whatever thread, and however the program ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.unit.drivers import DRAINED, WAIT_S, Recorder, World
from tests.unit.fakes import WORD_COUNTS, stored
from transactional.core.machine.protocol import Action, Event, RecordCommit
from transactional.core.store import TopologyStatus
from transactional.core.store.history import EndedHow
from transactional.errors import ConfigError, RetriesExhausted, TopologyInUse
from transactional.operations.launch.running import run_topology, start_topology
from transactional.operations.launch.topology_run import TopologyRun
from transactional.operations.loading import open_store
from transactional.runtime.engine.history.run_history import RunSummary
from transactional.topology.topology import Topology

QUICK = {"idle_pause_ms": 1, "retry_pause_ms": 1, "tick_ms": 1}
ROOT = Path(__file__).parents[4]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


def started(topology: Topology, url: str, config: Mapping[str, object] = QUICK, **more: Any) -> TopologyRun:
    return start_topology(topology, store=url, master="none", config=config, **more)


def status_of(url: str) -> TopologyStatus:
    with closing(open_store(url)) as store:
        [status] = store.status()
        return status


def end_of(url: str) -> EndedHow | None:
    """How the last run has ended, whose lease is released."""
    status = status_of(url)
    assert not status.is_leased
    assert status.run is not None
    return None if status.run.end is None else status.run.end.how


def fails(row: Any) -> NoReturn:
    raise ValueError("not a word")


def failing(url: str) -> TopologyRun:
    """A run that ends with an error of a bolt."""
    return started(World().topology(bolt=fails), url, {**QUICK, "attempts_max": 1})


def test_a_run_is_started_looked_at_and_stopped(url: str) -> None:
    world, recorder = World(), Recorder()
    run = started(world.topology(), url, observers=[recorder])
    recorder.wait_for(lambda: len(recorder.of(RecordCommit)) == 3)
    assert run.is_running
    assert run.stop() == RunSummary(1, 3, 0)  # type: ignore[arg-type]
    assert (run.is_running, run.error) == (False, None)
    assert str(run.status()) == "words: stopped, at transaction 3; 3 of this run, 19 rows, lag 0"
    assert stored(world.counts) == WORD_COUNTS
    assert run.stop() == run.drain() == run.wait(), "what has ended stays so"


def test_a_drained_run_ends_by_itself(url: str) -> None:
    with started(World().topology(), url, {**QUICK, "stop_when_drained": True}) as run:
        assert run.wait() == RunSummary(1, 3, 0)  # type: ignore[arg-type]
    assert run.status().state == "drained"


def test_drain_commits_what_is_in_flight(url: str) -> None:
    run = started(World().topology(), url)
    assert run.drain().failures == 0
    assert run.status().state == "drained"
    assert end_of(url) is EndedHow.DRAINED


def test_the_error_is_raised_by_all_that_waits(url: str) -> None:
    run = failing(url)
    for wait in (run.wait, run.wait, run.stop, run.drain):
        with pytest.raises(RetriesExhausted, match="not a word") as error:
            wait()
        assert error.value is run.error
    assert run.status().state == "failed"
    assert "TX408: " in str(run.status())


def test_the_error_is_raised_where_the_block_is_left(url: str) -> None:
    with pytest.raises(RetriesExhausted, match="not a word"), failing(url) as run:
        assert run._ended.wait(WAIT_S)


def test_the_error_of_the_block_is_raised_and_that_of_the_run_is_noted(url: str) -> None:
    run = failing(url)
    assert run._ended.wait(WAIT_S)
    with pytest.raises(KeyError) as error, run:
        raise KeyError("another")
    assert "topology 'words' had ended with RetriesExhausted: " in error.value.__notes__[0]


def test_an_error_that_the_block_has_got_is_noted_on_nothing(url: str) -> None:
    with pytest.raises(RetriesExhausted) as error, failing(url) as run:
        run.wait()
    assert not hasattr(error.value, "__notes__")


def test_a_block_that_is_left_has_stopped_its_run(url: str) -> None:
    with pytest.raises(KeyError), started(World().topology(), url) as run:
        raise KeyError("another")
    assert run.status().state == "stopped"


def test_what_keeps_a_run_from_starting_is_raised_at_once(url: str) -> None:
    world = World()
    with pytest.raises(ConfigError, match="no option 'tick'"):
        started(world.topology(), url, {"tick": 3})
    with started(world.topology(), url), pytest.raises(TopologyInUse):
        started(world.topology(), f"{url}?timeout=9")  # the same store under another name
    started(world.topology(), url).stop()


def test_a_second_start_in_one_process_is_refused(url: str) -> None:
    world = World()
    with started(world.topology(), url) as run:
        with pytest.raises(ConfigError, match=r"^topology 'words' is already run by this process: stop\(\) that run"):
            started(world.topology(), url)
        assert run.is_running
    started(world.topology(), url).stop()


def test_a_standby_returns_at_once_and_leads_when_the_other_run_has_ended(url: str) -> None:
    world = World()
    leader, watching = started(world.topology(), url), Recorder()
    standby = started(world.topology(), f"{url}?timeout=9", standby=True, observers=[watching])
    assert standby.status().state == "standing by"
    leader.stop()
    watching.wait_for(lambda: bool(watching.lines))
    assert standby.status().state == "running"
    standby.stop()


def test_a_standby_that_is_drained_ends(url: str) -> None:
    world = World()
    with started(world.topology(), url):
        standby = started(world.topology(), f"{url}?timeout=9", standby=True)
        assert standby.drain().transactions == 0


def test_waiting_has_its_time(url: str) -> None:
    with started(World().topology(), url) as run:
        with pytest.raises(TimeoutError, match=r"^topology 'words' still runs after 0\.01 s$"):
            run.wait(0.01)
        assert run.is_running


def test_threads_may_all_stop_a_run_at_once(url: str) -> None:
    run = started(World().topology(), url)
    with ThreadPoolExecutor(8) as pool:
        ends = [pool.submit(end) for end in (run.stop, run.drain, run.wait, run.stop) * 2]
    assert len({end.result() for end in ends}) == 1


def test_many_runs_of_one_process_leave_no_threads_and_raise_the_fence(url: str) -> None:
    world = World()
    started(world.topology(), url).stop()
    before, attempts = threading.active_count(), [status_of(url).attempt_id]
    for _ in range(4):
        assert started(world.topology(), url).drain().failures == 0
        attempts.append(status_of(url).attempt_id)
    assert threading.active_count() == before
    assert attempts == sorted(set(attempts))
    run_topology(world.topology(), store=url, master="none", config=DRAINED)
    assert stored(world.counts) == WORD_COUNTS


class Waits:
    """An observer that waits for the run that it observes."""

    run: TopologyRun

    def __init__(self) -> None:
        self.said, self.told = "", threading.Event()

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        """At the first event after the start."""
        if hasattr(self, "run") and not self.said:
            with pytest.raises(RuntimeError) as error:
                self.run.wait()
            self.said = str(error.value)
            self.told.set()


def test_an_observer_cannot_wait_for_its_own_run(url: str) -> None:
    observer = Waits()
    with started(World().topology(), url, observers=[observer]) as run:
        observer.run = run
        assert observer.told.wait(WAIT_S)
    assert observer.said == "an observer of topology 'words' can't wait for the run that calls it"


@contextmanager
def ctrl_c_in(function: str) -> Iterator[None]:
    """Send a SIGINT as soon as the main thread is in a function of this name."""
    main = threading.main_thread().ident
    assert main is not None

    def send() -> None:
        pause = threading.Event()
        while not any(name == function for name in called_by(main)):
            pause.wait(0.001)
        signal.pthread_kill(main, signal.SIGINT)

    sender = threading.Thread(target=send)
    # A shell starts what it runs in the background with this signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sender.start()
        yield
        sender.join()
    finally:
        signal.signal(signal.SIGINT, before)


def called_by(thread: int) -> list[str]:
    frame, names = sys._current_frames().get(thread), list[str]()
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names


def test_ctrl_c_while_waiting_leaves_the_run_running_and_says_so(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with started(World().topology(), url) as run:
        with ctrl_c_in("_wait_for_end"), pytest.raises(KeyboardInterrupt):
            run.wait()
        assert run.is_running
        assert capsys.readouterr().err == "topology 'words' keeps running: stop() ends it\n"


PROGRAM = """
from tests.unit.operations.launch.test_topology_run import World, started
run = started(World().topology(), {url!r})
{end}
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("end", "code"), [("", 0), ("raise KeyError('oh')", 1), ("import sys; sys.exit(3)", 3)])
def test_a_program_that_ends_stops_its_runs(url: str, end: str, code: int) -> None:
    program = [sys.executable, "-c", PROGRAM.format(url=url, end=end)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=5 * WAIT_S, check=False)
    assert done.returncode == code, done.stderr
    assert "topology 'words' is stopped, because the program has ended: wait() keeps it\n" in done.stderr
    assert end_of(url) is EndedHow.STOPPED
