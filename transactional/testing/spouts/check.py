"""`check_spout`, which tests whether a user's own spout keeps the promises that every spout makes."""

from __future__ import annotations

from transactional.testing.cases.running import run_cases
from transactional.testing.spouts import CASES
from transactional.testing.spouts.trial import Appender, Hider, SpoutFactory, SpoutTrial, Truncator


def check_spout(
    make: SpoutFactory,
    append: Appender,
    *cases: str,
    partitions: int = 2,
    truncate: Truncator | None = None,
    hide: Hider | None = None,
) -> dict[str, str]:
    """Test whether a spout keeps the promises that every spout makes.

    Raises an `AssertionError` if it does not, with the case, its steps, and the expected and actual outcome.

    `make` makes a spout, or an instance of a contract, over the source with this name, of letters, digits and
    underscores. It is called with a new name for each new source, and with an earlier name for another process.
    `append` adds a record for each word to a partition of a source, given its name and the number of the partition from
    0 on. It returns the tuples that the spout is to emit for them, or None if these are `(word,)`. `partitions` is the
    number of partitions, 1 for a source that has none.

    `cases` are names out of `SPOUT_CASES`; without any all are tried. `truncate` takes the newest record of a partition
    away. `hide` returns a context in which a partition does not exist. Without them such sources are not tried.

    The cases of features that the spout does not offer are returned, each with the reason: compare them with the
    features that you expect, so that no case is skipped unnoticed.
    """
    return run_cases("spout", CASES, cases, lambda source: SpoutTrial(make, append, source, partitions, truncate, hide))
