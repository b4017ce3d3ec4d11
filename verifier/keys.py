"""Rows that expire, computed again in plain Python from the tuples of each transaction and its recorded times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from verifier.evidence.store import CommittedBatch
from verifier.horizons import ExpiryRule, is_expired
from verifier.windows import Values, both, value_of


@dataclass(frozen=True, slots=True)
class KeyedTuple:
    """A tuple: its key, and the fields that are aggregated."""

    key: tuple[object, ...]
    fields: Mapping[str, object]


@dataclass(slots=True)
class RecomputedKeys:
    """Rows after any number of transactions.

    `columns` says for each value column that can be computed again how, and of which field; None: it counts tuples.
    `key` names the columns of the key.
    """

    key: tuple[str, ...]
    columns: Mapping[str, tuple[str, str | None]]
    expires: ExpiryRule
    horizon: int | None = None
    known: dict[tuple[object, ...], Values] = field(default_factory=dict)

    def commit(self, batch: CommittedBatch | None, tuples: Iterable[KeyedTuple]) -> None:
        """The next transaction: what has expired for it is gone, whatever comes for its key is new."""
        horizons = [self.horizon, None if batch is None else self.expires.horizon(batch)]
        self.horizon = max((each for each in horizons if each is not None), default=None)
        self._leave_out()
        for each in tuples:
            new = {name: value_of(how, of, each.fields) for name, (how, of) in self.columns.items()}
            old = self.known.get(each.key)
            rows = {name: both(how, old[name], new[name]) for name, (how, _) in self.columns.items()} if old else new
            self.known[each.key] = rows
        self._leave_out()

    def rows(self) -> Mapping[tuple[object, ...], Values]:
        """What a reader sees of the table."""
        return self.known

    def _leave_out(self) -> None:
        names = self.key
        self.known = {
            key: values
            for key, values in self.known.items()
            if not is_expired(({**dict(zip(names, key, strict=True)), **values})[self.expires.column], self.horizon)
        }
