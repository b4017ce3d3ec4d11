"""`FailuresInARow`: work that fails now and then is tried again; what fails each time is shown to people."""

from __future__ import annotations

from typing import Final

from transactional.model.plumbing.redaction import without_login

LASTING: Final = 3
"""So many failures in a row are no coincidence."""


class FailuresInARow:
    """Counts, by kind of work, how often in a row it has failed, with the last reason."""

    def __init__(self) -> None:
        self._failures = dict[str, tuple[int, str]]()

    def add(self, kind: str, reason: str) -> None:
        """Count a failure."""
        self._failures[kind] = (self.count(kind) + 1, without_login(reason))

    def count(self, kind: str) -> int:
        """How many failures there are in a row."""
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
            if count >= LASTING
        )
