"""The table of transitions: what it says itself, and that the coordinator obeys it for every pair of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.conversation import Conversation, batch, digest
from transactional.core.machine import protocol
from transactional.core.machine.protocol import (
    LATE,
    TRANSITIONS,
    AttemptEvent,
    AttemptFailed,
    BatchPlanned,
    CommitSucceeded,
    ProcessingSucceeded,
    ProgressMade,
    Trigger,
)
from transactional.core.store.progress import Phase, Progress
from transactional.errors import ProtocolError
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId

EVENTS: dict[Trigger, Callable[[TransactionAttempt], AttemptEvent]] = {
    Trigger.BATCH_PLANNED: lambda attempt: BatchPlanned(attempt, batch(10, 20)),
    Trigger.NOTHING_THERE: lambda attempt: BatchPlanned(attempt, None),
    Trigger.PROCESSING_SUCCEEDED: lambda attempt: ProcessingSucceeded(attempt, digest(10)),
    Trigger.COMMIT_SUCCEEDED: CommitSucceeded,
    Trigger.ATTEMPT_FAILED: lambda attempt: AttemptFailed(attempt, "no luck"),
}
DECISIONS = (Trigger.PLAN_AGAIN, Trigger.ITS_TURN, Trigger.GIVEN_UP)
PHASES_IN_FLIGHT = [phase for phase in Phase if phase is not Phase.GONE]
ALL_EVENTS = [*EVENTS.values(), ProgressMade]


def planning() -> Conversation:
    talk = Conversation(Progress(attempt_id=AttemptId(10)))
    talk.start_processing(1)
    return talk


def waiting() -> Conversation:
    talk = planning()
    talk.nothing(2)
    return talk


def processing() -> Conversation:
    talk = Conversation(Progress(attempt_id=AttemptId(10)))
    talk.start_processing(2)
    return talk


def processed() -> Conversation:
    talk = processing()
    talk.process(2)
    return talk


def aborting() -> Conversation:
    talk = processing()
    talk.fail(1)
    return talk


def committing() -> Conversation:
    talk = Conversation(Progress(attempt_id=AttemptId(10)))
    talk.start()
    talk.plan(1)
    talk.process(1)
    return talk


IN_PHASE: dict[Phase, tuple[Callable[[], Conversation], int]] = {
    Phase.PLANNING: (planning, 2),
    Phase.WAITING: (waiting, 2),
    Phase.PROCESSING: (processing, 2),
    Phase.PROCESSED: (processed, 2),
    Phase.COMMITTING: (committing, 1),
    Phase.ABORTING: (aborting, 2),
}
"""How to get an attempt into each phase, and the txid that then is in it: not the head, where it has the choice."""


def in_phase(phase: Phase) -> tuple[Conversation, TransactionAttempt]:
    build, txid = IN_PHASE[phase]
    talk = build()
    assert talk.phase(txid) is phase
    return talk, talk.current(txid)


def phase_of(talk: Conversation, attempt: TransactionAttempt) -> Phase:
    """The phase of exactly this attempt: GONE when another one has its place."""
    current = talk.coordinator.active.get(attempt.txid)
    return current.phase if current and current.attempt == attempt else Phase.GONE


def every_pair() -> list[tuple[Phase, Trigger]]:
    return [(phase, trigger) for phase in PHASES_IN_FLIGHT for trigger in EVENTS]


def test_a_pair_is_either_allowed_or_late() -> None:
    assert not LATE & TRANSITIONS.keys()


def test_every_phase_but_gone_is_entered_and_left() -> None:
    entered = {*TRANSITIONS.values(), Phase.PLANNING}
    left = {phase for phase, _ in TRANSITIONS}
    assert entered == set(Phase)
    assert left == set(Phase) - {Phase.GONE}


def test_every_attempt_in_flight_can_fail_or_is_given_up() -> None:
    """Nothing gets stuck: from every phase a failure or a decision leads to GONE."""
    ways_out = {phase for phase, trigger in TRANSITIONS if trigger in (Trigger.ATTEMPT_FAILED, Trigger.GIVEN_UP)}
    assert ways_out == set(PHASES_IN_FLIGHT)


def test_every_phase_and_trigger_is_covered_here() -> None:
    assert set(IN_PHASE) == set(PHASES_IN_FLIGHT)
    assert {*EVENTS, *DECISIONS} == set(Trigger)


@pytest.mark.parametrize(("phase", "trigger"), [pair for pair in every_pair() if pair in TRANSITIONS])
def test_an_allowed_event_moves_by_the_table(phase: Phase, trigger: Trigger) -> None:
    talk, attempt = in_phase(phase)
    talk.tell(EVENTS[trigger](attempt))
    assert phase_of(talk, attempt) is TRANSITIONS[phase, trigger]


@pytest.mark.parametrize(("phase", "trigger"), [pair for pair in every_pair() if pair in LATE])
def test_a_late_event_changes_nothing(phase: Phase, trigger: Trigger) -> None:
    talk, attempt = in_phase(phase)
    before = talk.state()
    assert talk.tell(EVENTS[trigger](attempt)) == []
    assert talk.state() == before


@pytest.mark.parametrize(
    ("phase", "trigger"), [pair for pair in every_pair() if pair not in TRANSITIONS and pair not in LATE]
)
def test_any_other_event_is_a_protocol_error_and_changes_nothing(phase: Phase, trigger: Trigger) -> None:
    talk, attempt = in_phase(phase)
    before = talk.state()
    with pytest.raises(ProtocolError, match=f"{trigger.value!r} arrived for {attempt} in phase {phase.name}"):
        talk.tell(EVENTS[trigger](attempt))
    assert talk.state() == before


@pytest.mark.parametrize("phase", PHASES_IN_FLIGHT)
@pytest.mark.parametrize("event", ALL_EVENTS)
def test_an_event_of_another_attempt_changes_nothing(
    phase: Phase, event: Callable[[TransactionAttempt], AttemptEvent]
) -> None:
    """Storm row T48: compared first; whether it is of an older, a newer or an unheard-of transaction."""
    talk, attempt = in_phase(phase)
    before = talk.state()
    older = TransactionAttempt(attempt.txid, AttemptId(attempt.attempt_id - 1))
    newer = TransactionAttempt(attempt.txid, AttemptId(attempt.attempt_id + 50))
    for stranger in (older, newer, TransactionAttempt(TxId(77), attempt.attempt_id)):
        assert talk.tell(event(stranger)) == []
    assert talk.state() == before


@pytest.mark.parametrize("event", ALL_EVENTS)
def test_an_event_of_an_attempt_that_is_gone_changes_nothing(
    event: Callable[[TransactionAttempt], AttemptEvent],
) -> None:
    talk, attempt = in_phase(Phase.ABORTING)
    talk.tell(AttemptFailed(attempt, "aborted"))
    before = talk.state()
    assert talk.tell(event(attempt)) == []
    assert talk.state() == before


@pytest.mark.parametrize("phase", PHASES_IN_FLIGHT)
@pytest.mark.parametrize("trigger", DECISIONS)
def test_a_decision_moves_by_the_table_or_is_a_protocol_error(phase: Phase, trigger: Trigger) -> None:
    talk, attempt = in_phase(phase)
    current = talk.coordinator.active[attempt.txid]
    before = talk.state()
    if (phase, trigger) in TRANSITIONS:
        assert talk.coordinator._move(current, trigger)
        assert phase_of(talk, attempt) is TRANSITIONS[phase, trigger]
    else:
        with pytest.raises(ProtocolError):
            talk.coordinator._move(current, trigger)
        assert talk.state() == before


def test_the_diagram_shows_every_transition() -> None:
    lines = protocol.diagram().splitlines()
    assert lines[0] == "stateDiagram-v2"
    for (phase, trigger), after in TRANSITIONS.items():
        target = "[*]" if after is Phase.GONE else after.name
        assert f"    {phase.name} --> {target}: {trigger.value}" in lines
    assert len(lines) == len(TRANSITIONS) + 3
