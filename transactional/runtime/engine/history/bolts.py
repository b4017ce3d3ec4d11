"""Finds the bolt of the current program that an earlier run of the topology knew by another id.

The ids of a stream's operations (`b-1-filter`) are numbered in the order of declaration, so in another order the same
id belongs to another bolt. A bolt is identified by its id without the number, by everything that it reads, and, if that
is ambiguous, by the bolts with ids chosen by the user that its tuples reach. If several bolts match, none is returned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from transactional.core.ports.stream_names import find_run, normalize_origin
from transactional.core.store.history import RunRecord
from transactional.model.attempt import TxId

_GENERATED_ID = re.compile(r"b-\d+-")


@dataclass(frozen=True, slots=True)
class EarlierBolts:
    """The description of the current topology, and its earlier runs, newest first."""

    description: Mapping[str, Any]
    runs: Sequence[RunRecord] = ()

    def current_id(self, bolt: str, txid: TxId) -> str | None:
        """Return the current id of the bolt that had the id `bolt` when a transaction was committed.

        None if no bolt matches, or several do. The id itself if the run is not known any more.
        """
        run = find_run(self.runs, txid)
        if not _GENERATED_ID.match(bolt) or run is None or not run.about.topology:
            return bolt
        earlier, current = _Wiring(run.about.topology), _Wiring(self.description)
        if bolt not in earlier.inputs or earlier.inputs == current.inputs:
            return bolt
        lineage, named_bolts = earlier.lineage(bolt), earlier.named_bolts_behind(bolt)
        rivals, candidates = earlier.bolts_like(lineage), current.bolts_like(lineage)
        if len(rivals) > 1 or len(candidates) > 1:
            rivals, candidates = earlier.bolts_like(lineage, named_bolts), current.bolts_like(lineage, named_bolts)
        return candidates[0] if len(rivals) == len(candidates) == 1 else None


@dataclass(slots=True)
class _Wiring:
    """The subscriptions between the components of a described topology."""

    description: Mapping[str, Any]
    inputs: dict[str, list[tuple[str, str]]] = field(init=False)
    """The component and the stream of each input of a bolt, by bolt."""

    def __post_init__(self) -> None:
        spout, *bolts = self.description["components"]
        self.inputs = {
            bolt["id"]: [normalize_origin(source["source"], source["stream"], spout["id"]) for source in bolt["inputs"]]
            for bolt in bolts
        }

    def bolts_like(self, lineage: Any, named_bolts: Set[str] | None = None) -> list[str]:
        """Return the bolts with this lineage; with `named_bolts`, only those whose tuples reach one of them."""
        bolts = [bolt for bolt in self.inputs if self.lineage(bolt) == lineage]
        return [bolt for bolt in bolts if named_bolts is None or self.named_bolts_behind(bolt) & named_bolts]

    def lineage(self, bolt: str) -> Any:
        """Return a bolt's id without its number, together with the lineages of all that it reads."""
        inputs = ((self.lineage(source), stream) for source, stream in self.inputs.get(bolt, ()))
        return _GENERATED_ID.sub("", bolt), sorted(inputs)

    def named_bolts_behind(self, bolt: str) -> set[str]:
        """Return the bolts with ids chosen by the user that a bolt's tuples reach."""
        return {subscriber for subscriber in self._bolts_behind(bolt) if not _GENERATED_ID.match(subscriber)}

    def _bolts_behind(self, bolt: str) -> Iterator[str]:
        for subscriber, inputs in self.inputs.items():
            if any(source == bolt for source, _ in inputs):
                yield subscriber
                yield from self._bolts_behind(subscriber)
