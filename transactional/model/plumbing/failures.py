"""`FailuresInARow`: distinguishes work that fails now and then, and is retried, from work that fails each time.

Only lasting failures are shown to people.
"""

from __future__ import annotations

from typing import Final

from transactional.model.plumbing.redaction import without_login

LASTING_COUNT: Final = 3
"""The number of failures in a row that are no longer taken for coincidence."""


class FailuresInARow:
    """Counts, by kind of work, how often in a row it has failed, with the last reason."""

    def __init__(self) -> None:
        self._failures = dict[str, tuple[int, str]]()

    def add(self, kind: str, reason: str) -> None:
        """Count a failure of this kind of work, with its reason."""
        self._failures[kind] = (self.count(kind) + 1, without_login(reason))

    def count(self, kind: str) -> int:
        """Return the number of failures in a row of this kind of work."""
        return self._failures.get(kind, (0, ""))[0]

    def clear(self, kind: str) -> None:
        """Forget the failures of work that has gone well."""
        self._failures.pop(kind, None)

    @property
    def lasting(self) -> str:
        """The kinds that have failed `LASTING` times in a row, with their last reasons; empty without any."""
        return "; ".join(
            f"{kind} has failed {count} times in a row: {reason}"
            for kind, (count, reason) in self._failures.items()
            if count >= LASTING_COUNT
        )
