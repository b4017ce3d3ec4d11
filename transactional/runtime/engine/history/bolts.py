"""Which bolt of today is the one that an earlier program called so.

The ids that a stream's operations get (`b-1-filter`) follow from all that is declared: in another order, the same id is
that of another bolt. It is found by what it is called beside the number, by what it reads, and by the bolts with names
of their own that its tuples reach.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from transactional.core.ports.stream_names import find_run, normalize_origin
from transactional.core.store.history import RunRecord
from transactional.model.attempt import TxId

_MADE_UP = re.compile(r"b-\d+-")


@dataclass(frozen=True, slots=True)
class Bolts:
    """The bolts of a topology as it is described today, and the runs of before, newest first."""

    now: Mapping[str, Any]
    runs: Sequence[RunRecord] = ()

    def today(self, bolt: str, txid: TxId) -> str | None:
        """The id of the bolt that had this one when a transaction was committed, as far as a run is known; None:
        there is none, or several that it may be."""
        run = find_run(self.runs, txid)
        if not _MADE_UP.match(bolt) or run is None or not run.about.topology:
            return bolt
        before, now = _Wiring(run.about.topology), _Wiring(self.now)
        if bolt not in before.bolts or before.bolts == now.bolts:
            return bolt
        says, reached = before.says(bolt), before.reached(bolt)
        rivals, alike = before.alike(says), now.alike(says)
        if len(rivals) > 1 or len(alike) > 1:
            rivals, alike = before.alike(says, reached), now.alike(says, reached)
        return alike[0] if len(rivals) == len(alike) == 1 else None


@dataclass(slots=True)
class _Wiring:
    """Who reads from whom, of a description."""

    about: Mapping[str, Any]
    bolts: dict[str, list[tuple[str, str]]] = field(init=False)
    """By bolt, where its inputs come from."""

    def __post_init__(self) -> None:
        spout, *bolts = self.about["components"]
        self.bolts = {
            each["id"]: [normalize_origin(of["source"], of["stream"], spout["id"]) for of in each["inputs"]]
            for each in bolts
        }

    def alike(self, says: Any, reached: Set[str] | None = None) -> list[str]:
        """Those of which `says` is true; with `reached`, that reach one of these."""
        found = [each for each in self.bolts if self.says(each) == says]
        return [each for each in found if reached is None or self.reached(each) & reached]

    def says(self, bolt: str) -> Any:
        """What it is called, and all that it reads."""
        inputs = ((self.says(source), stream) for source, stream in self.bolts.get(bolt, ()))
        return _MADE_UP.sub("", bolt), sorted(inputs)

    def reached(self, bolt: str) -> set[str]:
        """The bolts behind it that have names of their own."""
        return {each for each in self._behind(bolt) if not _MADE_UP.match(each)}

    def _behind(self, bolt: str) -> Iterator[str]:
        for each, inputs in self.bolts.items():
            if any(source == bolt for source, _ in inputs):
                yield each
                yield from self._behind(each)
