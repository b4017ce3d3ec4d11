"""The records about tuples that a transaction skips or retries, which are part of its batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from transactional.model.plumbing.redaction import without_login


@dataclass(frozen=True, slots=True, order=True)
class Exclusion:
    """Tuples that a bolt no longer receives, because it failed on one of them as often as is allowed.

    `fingerprint` identifies the tuple's source, stream and values, so equal tuples are treated alike; `error` is the
    error that the bolt raised, without logins.
    """

    component: str
    fingerprint: str
    error: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "error", without_login(self.error))

    @property
    def key(self) -> tuple[str, str]:
        """The component and the fingerprint, without the error, which may differ the next time."""
        return self.component, self.fingerprint


def merge_exclusions(*parts: Iterable[Exclusion]) -> tuple[Exclusion, ...]:
    """Return each tuple once, with the first error reported for it, sorted."""
    by_key: dict[tuple[str, str], Exclusion] = {}
    for part in parts:
        for exclusion in sorted(part):
            by_key.setdefault(exclusion.key, exclusion)
    return tuple(sorted(by_key.values()))


@dataclass(slots=True)
class Tries:
    """The number of attempts of one transaction that have failed on each tuple."""

    _failures: dict[tuple[str, str], int] = field(default_factory=dict)

    def count_failures(self, at_fault: Iterable[Exclusion], failures_max: int) -> tuple[Exclusion, ...]:
        """Count the tuples at fault in a failed attempt, and return those on which `failures_max` attempts failed."""
        exclusions = merge_exclusions(at_fault)
        for exclusion in exclusions:
            self._failures[exclusion.key] = self._failures.get(exclusion.key, 0) + 1
        return tuple(exclusion for exclusion in exclusions if self._failures[exclusion.key] >= failures_max)


@dataclass(frozen=True, slots=True, order=True)
class Letter:
    """A dead letter that is sent once more to the bolt that it was set aside from.

    `txid` and `number` are its key in the table of dead letters; `values` the tuple as JSON.
    """

    txid: int
    number: int
    component: str
    source: str
    stream: str
    values: str
    error: str

    @property
    def key(self) -> tuple[int, int]:
        """The key of its row in the table of dead letters."""
        return self.txid, self.number
