"""Runs a journal through fresh coordinators and compares: `python -m transactional.runtime.engine.history.replay`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from transactional.core.machine.coordinator import Coordinator
from transactional.core.machine.invariants import check
from transactional.model.errors import CorruptRecord, TransactionalError
from transactional.runtime.engine.history.journal import JournalLine, RewindLine, RunStarted, read_journal


def replay(lines: Iterable[JournalLine], coordinator: Coordinator | None = None) -> int:
    """Feed a journal's events to a coordinator; return the number of events.

    Each run in the journal starts with a coordinator of its own; `coordinator` takes the events before that. Raises
    `AssertionError` naming the first line whose actions differ, `ProtocolError` if an invariant is violated,
    `CorruptRecord` for an event that no coordinator has written.
    """
    count = 0
    for number, (_, event, actions) in enumerate(lines, 1):
        if isinstance(event, RunStarted):
            coordinator = Coordinator(
                event.progress,
                event.config,
                replays_exactly=event.replays_exactly,
                sets_aside=event.sets_aside,
                guarantee=event.guarantee,
                has_windows=event.has_windows,
            )
            continue
        if isinstance(event, RewindLine):
            coordinator = None
            continue
        if coordinator is None:
            raise CorruptRecord(f"line {number} is an event, but the journal does not say how its run began")
        try:
            replayed = coordinator.handle(event)
            check(coordinator)
        except (LookupError, TypeError, ValueError) as error:
            raise CorruptRecord(f"line {number}: a coordinator can't process {event}: {error!r}") from error
        if replayed != actions:
            raise AssertionError(f"line {number}: {event} gave {actions}, and now gives {replayed}")
        count += 1
    return count


def main() -> None:
    """Replay the journal that the command line names, and exit with an error if an action differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("journal", type=Path)
    options = parser.parse_args()
    try:
        count = replay(read_journal(options.journal))
    except (TransactionalError, AssertionError, OSError) as error:
        sys.exit(str(error))
    sys.stdout.write(f"{count} events, every action the same\n")


if __name__ == "__main__":
    main()
