"""`check_sink`, which tests whether a user's own sink keeps the promises that every sink makes."""

from __future__ import annotations

from collections.abc import Callable

from transactional.core.ports import Sink
from transactional.testing.cases.running import run_cases
from transactional.testing.sinks import CASES
from transactional.testing.sinks.trial import SinkFactory, SinkTrial, TargetReader


def check_sink(
    make: SinkFactory,
    read: TargetReader,
    *cases: str,
    break_publication: Callable[[Sink], None] | None = None,
    in_order: bool = True,
) -> dict[str, str]:
    """Test whether a sink keeps the promises that every sink makes.

    Raises an `AssertionError` if it does not, with the case, its steps, and the expected and actual outcome.

    `make` makes a sink that publishes to the target with this name, of letters, digits and underscores. It is called
    with a new name for each new target, and with an earlier name for another leader or another task. `read` returns
    what readers of that target see: for each record a pair of the fields `word string` and `count long`, which are
    those of the stream. With `in_order` they come in the order of publication.

    `cases` are names out of `SINK_CASES`; without any all are tried. `break_publication` makes the next publication of
    an open sink fail, after the target has taken some or all of its records; without it such failures are not tried.

    The cases of features that the sink does not offer are returned, each with the reason: compare them with the
    features that you expect, so that no case is skipped unnoticed.
    """
    return run_cases("sink", CASES, cases, lambda target: SinkTrial(make, read, target, break_publication, in_order))
