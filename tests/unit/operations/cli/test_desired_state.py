"""`transactional activate | deactivate | drain | kill`: what they say, what they refuse, and what a run then does."""

from __future__ import annotations

import pytest

from tests.unit.command_line import RUN, Command
from transactional.core.store import Desired, DesiredState, Lease
from transactional.core.store.sql.sql_store import SqlCoordinatorStore

STORE = "sqlite:///transactional.db"
LATER = "(not running; the next run will pick this up)\n"


def desired() -> Desired:
    store = SqlCoordinatorStore(STORE)
    found = store.desired("words")
    store.close()
    return found


@pytest.fixture
def leased(command: Command) -> Lease:
    """A topology that has run once, and that another process coordinates now."""
    command(*RUN, "{m}:topology")
    store = SqlCoordinatorStore(STORE)
    [status] = store.status()
    lease = store.acquire("words", status.fingerprint, owner="host:7:ab", lease_ms=60_000)
    store.close()
    return lease


@pytest.mark.parametrize(
    ("name", "state", "then"),
    [
        ("activate", DesiredState.ACTIVE, "new transactions are issued"),
        ("deactivate", DesiredState.INACTIVE, "no new transactions until it is activated"),
        ("drain", DesiredState.DRAINING, "no new transactions; the run ends once everything is committed"),
    ],
)
def test_a_wish_is_stored_and_reported(command: Command, name: str, state: DesiredState, then: str) -> None:
    """Storm rows T32, O4."""
    command(*RUN, "{m}:topology")
    done = command(name, "words")
    assert (done.code, done.out, done.err) == (0, f"words is now {state.value}: {then} {LATER}", "")
    assert desired() == Desired(state)
    assert state.value in command("status").out


@pytest.mark.parametrize(("arguments", "seconds"), [((), 30), (("--wait", "7"), 7), (("-w", "0"), 0)])
def test_a_kill_waits(command: Command, leased: Lease, arguments: tuple[str, ...], seconds: int) -> None:
    """Storm row O5: thirty seconds, which is its message time-out, unless told otherwise."""
    done = command("kill", "words", *arguments)
    then = f"no new transactions; the run is stopped in {seconds} s ({leased.owner} checks once a second)"
    assert (done.code, done.out) == (0, f"words is now killed: {then}\n")
    now = desired()
    assert now.state is DesiredState.KILLED
    assert now.stop_in_ms is not None
    assert seconds * 1_000 - 5_000 < now.stop_in_ms <= seconds * 1_000


def test_a_kill_of_what_does_not_run_is_refused(command: Command) -> None:
    command(*RUN, "{m}:topology")
    done = command("kill", "words")
    assert (done.code, done.err) == (1, "TX100: topology 'words' is not running: there is nothing to kill\n")
    assert desired() == Desired()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["activate", "deactivate", "drain", "kill"])
def test_a_topology_that_is_not_known_is_reported(command: Command, name: str) -> None:
    assert command(name, "words").err.startswith("TX100: there is no store at transactional.db: ")
    command(*RUN, "{m}:topology")
    done = command(name, "wrods")
    assert (done.code, done.out) == (1, "")
    assert done.err == "TX100: there is no topology 'wrods' in the store; it has: words — did you mean 'words'?\n"


def test_another_store_may_be_named(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = "sqlite:///elsewhere.db"
    command(*RUN, "--store", elsewhere, "{m}:topology")
    assert command("deactivate", "words", "--store", elsewhere).code == 0
    monkeypatch.setenv("TRANSACTIONAL_STORE", elsewhere)
    assert command("activate", "words").code == 0


@pytest.mark.parametrize("arguments", [("--wait", "-1"), ("--wait", "soon")])
def test_a_wait_that_is_none_is_refused(command: Command, arguments: tuple[str, ...]) -> None:
    done = command("kill", "words", *arguments)
    assert (done.code, done.out) == (2, "")


def test_a_drain_of_what_does_not_run_is_carried_out_by_the_next_run(command: Command, module: str) -> None:
    command(*RUN, "{m}:topology")
    command("drain", "words")
    done = command("run", "--master", "none", "{m}:topology")
    assert (done.code, done.out.splitlines()) == (
        0,
        [
            "no new transactions are issued; the run ends once everything in flight is committed",
            "0 transactions committed, the last is 2; 0 attempts failed",
        ],
    )
    assert desired() == Desired(DesiredState.ACTIVE)
