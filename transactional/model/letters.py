"""Tuples that a transaction skips or retries: what is recorded about them with its batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from transactional.model.plumbing.redaction import without_login


@dataclass(frozen=True, slots=True, order=True)
class Exclusion:
    """Tuples that a bolt no longer receives, because it failed on one of them as often as is allowed.

    `fingerprint` identifies the tuple's source, stream and values, so equal tuples are treated alike; `error` is what
    the bolt raised, without logins.
    """

    component: str
    fingerprint: str
    error: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "error", without_login(self.error))

    @property
    def key(self) -> tuple[str, str]:
        """Which tuples of which bolt: the error may differ the next time."""
        return self.component, self.fingerprint


def joined(*parts: Iterable[Exclusion]) -> tuple[Exclusion, ...]:
    """Each tuple once, with the first error reported for it, sorted."""
    by_key: dict[tuple[str, str], Exclusion] = {}
    for part in parts:
        for exclusion in sorted(part):
            by_key.setdefault(exclusion.key, exclusion)
    return tuple(sorted(by_key.values()))


@dataclass(slots=True)
class Tries:
    """How many attempts of one transaction have failed on each tuple."""

    _of: dict[tuple[str, str], int] = field(default_factory=dict)

    def used_up(self, at_fault: Iterable[Exclusion], most: int) -> tuple[Exclusion, ...]:
        """Count the tuples named by a failed attempt; return those on which `most` attempts have failed."""
        named = joined(at_fault)
        for exclusion in named:
            self._of[exclusion.key] = self._of.get(exclusion.key, 0) + 1
        return tuple(exclusion for exclusion in named if self._of[exclusion.key] >= most)


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
        """Its row in the table."""
        return self.txid, self.number
