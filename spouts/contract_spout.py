"""`ContractSpout`: turns a user's implementation of `spouts.contracts` into a `Spout`, and reports mistakes by name.

A batch keeps the user's metadata per partition, as JSON; its offsets only count: [k, k + 1) is batch number k that has
something of the partition, [k, k) means that this batch has nothing of it. So positions, digests and replays work as
they do for the offsets of a log. A contract without partitions has a partition for each of its parts.
"""

from __future__ import annotations

import copy
import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from spouts.contract_ports import Contract, ContractOfPartitions, ContractOfParts
from spouts.contract_reader import ContractReader, PartitionsReader, PartsReader, attributed_to, shown
from transactional.core.ports import Spout
from transactional.model.batch import BatchLimit, BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.errors import ConfigError
from transactional.model.facts import Listing
from transactional.model.schema import Schema

METADATA_CHARACTERS_MAX = 1_000_000
"""The maximum length of the JSON of one partition's metadata: a batch is written to the store as a whole."""

_PART = "part"
_START = Offset(0)


class ContractSpout(Spout):
    """The driver's side of a contract, as the engine sees it (`transactional.core.ports.Spout`)."""

    def __init__(self, contract: Contract, *, replays_exactly: bool) -> None:
        self.name = type(contract).__name__
        self._contract, self._replays_exactly = contract, replays_exactly
        self._output = _parse_output(self.name, contract.output)
        self._was_ready = True

    @property
    def output(self) -> Schema:
        """The fields of the tuples."""
        return self._output

    @property
    def replays_exactly(self) -> bool:
        """False for an opaque contract."""
        return self._replays_exactly

    def identity(self) -> Mapping[str, str]:
        """The class, the fields, and what the contract adds."""
        with attributed_to(f"{self.name}.identity"):
            added = dict(self._contract.identity())
        return {"kind": self.name, "fields": str(self.output), **added}

    def open(self) -> None:
        """Open the contract."""
        with attributed_to(f"{self.name}.open"):
            self._contract.open()

    @abstractmethod
    def apart(self) -> Self:
        """With a contract of its own, as it was before `open`."""

    def close(self) -> None:
        """Close the contract."""
        with attributed_to(f"{self.name}.close"):
            self._contract.close()

    @property
    def can_limit_batches(self) -> bool:
        """True: a contract without the method is refused with the first limit."""
        return True

    def limit_batches(self, limit: BatchLimit) -> None:
        """Pass the limit to the contract."""
        with attributed_to(f"{self.name}.limit_batches"):
            self._contract.limit_batches(limit)

    def plan(self, after: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        """The batch after `after`: what the contract has new, and everything known about other partitions.

        Raises `BoltFailed` if the contract raises an exception, `ConfigError` for metadata that JSON does not preserve.
        """
        new = self._next(after) if replay or self._is_ready() else {}
        if not new and not replay:
            return None
        positions = after.positions()
        carried = {partition: OffsetRange(position, position) for partition, position in positions.items()}
        added = {partition: _step(positions.get(partition, _START)) for partition in new}
        return BatchMetadata(carried | added, metadata={**after.metadata, **new})

    def _is_ready(self) -> bool:
        with attributed_to(f"{self.name}.is_ready"):
            self._was_ready = self._contract.is_ready()
        return self._was_ready

    @property
    def has_ended(self) -> bool:
        """False if the contract was not ready."""
        return self._was_ready

    @abstractmethod
    def _next(self, after: BatchMetadata) -> dict[PartitionId, Any]:
        """The metadata of the partitions that the next batch reads."""

    @abstractmethod
    def check_replay(self, batch: BatchMetadata) -> None:
        """Check with an exact contract whether the batch can be emitted again."""

    @abstractmethod
    def reader(self) -> ContractReader:
        """The emitter for the executors."""

    @abstractmethod
    def committed(self, batch: BatchMetadata) -> None:
        """Notify the contract of a transaction commit, unless the batch is empty."""


class PartsContractSpout(ContractSpout):
    """A `TransactionalSpout`: all parts of a batch have the same metadata."""

    def __init__(self, contract: ContractOfParts, parts: int) -> None:
        super().__init__(contract, replays_exactly=True)
        self._whole, self._parts = contract, parts
        self._reader = PartsReader(self.output, copy.copy(contract))

    def _next(self, after: BatchMetadata) -> dict[PartitionId, Any]:
        last = after.metadata.get(PartitionId(_PART, 0))
        previous = None if last is None else copy.deepcopy(last["metadata"])
        where = f"{self.name}.initialize_transaction"
        with attributed_to(where):
            answer = self._whole.initialize_transaction(previous)
        if answer is None:
            return {}
        kept = {"parts": self._parts, "metadata": as_json(where, answer)}
        return {PartitionId(_PART, part): kept for part in range(self._parts)}

    def check_replay(self, batch: BatchMetadata) -> None:
        """Check with the contract whether the batch can be emitted again."""
        for _, kept in _kept(batch)[:1]:
            with attributed_to(f"{self.name}.check_replay"):
                self._whole.check_replay(kept["metadata"])

    def apart(self) -> Self:
        """With a contract of its own, as it was before `open`."""
        return type(self)(copy.copy(self._reader.contract), self._parts)

    def reader(self) -> PartsReader:
        """The emitter of the parts: the contract as it was before `open`."""
        return self._reader

    def committed(self, batch: BatchMetadata) -> None:
        """Notify the contract of a transaction commit, unless the batch is empty."""
        for _, kept in _kept(batch)[:1]:
            self._whole.committed(kept["metadata"])


class PartitionsContractSpout(ContractSpout):
    """A contract over partitions; an opaque one has no `check_replay`."""

    def __init__(self, contract: ContractOfPartitions, check_replay: Callable[[str, Any], None] | None) -> None:
        super().__init__(contract, replays_exactly=check_replay is not None)
        self._partitioned, self._check_replay = contract, check_replay
        self._reader = PartitionsReader(self.output, copy.copy(contract))
        self._answers: dict[PartitionId, Any] | None = None

    def _next(self, after: BatchMetadata) -> dict[PartitionId, Any]:
        answers = self._answers = {PartitionId(name, 0): self._next_of(name, after) for name in self._names()}
        return {partition: answer for partition, answer in answers.items() if answer is not None}

    def _names(self) -> list[str]:
        where = f"{self.name}.partitions"
        with attributed_to(where):
            return _names(where, self._partitioned.partitions())

    def listed(self, after: BatchMetadata) -> dict[PartitionId, Listing]:
        """The contract's partitions. Those that were not planned with, since the contract is not ready, do not
        answer."""
        answers, self._answers = self._answers, None
        if answers is None:
            return {PartitionId(name, 0): Listing.AWAY for name in self._names()}
        return {at: Listing.EMPTY if answer is None else Listing.UNREAD for at, answer in answers.items()}

    def _next_of(self, name: str, after: BatchMetadata) -> Any:
        where = f"{self.name}.next_batch for partition {name!r}"
        with attributed_to(where):
            answer = self._partitioned.next_batch(name, copy.deepcopy(after.metadata.get(PartitionId(name, 0))))
        return None if answer is None else as_json(where, answer)

    def check_replay(self, batch: BatchMetadata) -> None:
        """Check with an exact contract whether every partition's part of the batch can be emitted again."""
        if self._check_replay is None:
            return
        for partition, metadata in _kept(batch):
            with attributed_to(f"{self.name}.check_replay for partition {partition.source!r}"):
                self._check_replay(partition.source, metadata)

    def apart(self) -> Self:
        """With a contract of its own, as it was before `open`."""
        contract: Any = copy.copy(self._reader.contract)
        return type(self)(contract, None if self._check_replay is None else contract.check_replay)

    def reader(self) -> PartitionsReader:
        """The emitter of the partitions: the contract as it was before `open`."""
        return self._reader

    def committed(self, batch: BatchMetadata) -> None:
        """Notify the contract of a transaction commit, unless the batch is empty."""
        metadata = {partition.source: kept for partition, kept in _kept(batch)}
        if metadata:
            self._partitioned.committed(metadata)


def as_json(where: str, value: Any) -> Any:
    """The value as it comes back from JSON. Raises `ConfigError` if that differs, or is too long."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where} returned metadata that are not JSON: {error}; {_JSON}") from error
    back = json.loads(text)
    if back != value:
        raise ConfigError(f"{where} returned {shown(value)}, which JSON turns into {shown(back)}; {_JSON}")
    if len(text) > METADATA_CHARACTERS_MAX:
        raise ConfigError(
            f"{where} returned metadata of {len(text)} characters, at most {METADATA_CHARACTERS_MAX} are kept per "
            "partition: return where the tuples are, not what they are"
        )
    return back


_JSON = "return dictionaries with text as keys, lists, text, numbers, True, False or None"


def _kept(batch: BatchMetadata) -> list[tuple[PartitionId, Any]]:
    """The partitions that the batch reads, and copies of their metadata for user code."""
    return [(partition, copy.deepcopy(batch.metadata[partition])) for partition, _ in batch.non_empty()]


def _step(position: Offset) -> OffsetRange:
    return OffsetRange(position, Offset(position + 1))


def _names(where: str, partitions: Any) -> list[str]:
    names = list(partitions) if isinstance(partitions, Iterable) and not isinstance(partitions, str) else None
    if names is None or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            f"{where} returned {shown(partitions if names is None else names)}; it must return the partitions' "
            'names, such as ["0", "1", "2"]'
        )
    return sorted(set(names))


def _parse_output(name: str, output: Any) -> Schema:
    if not isinstance(output, str) or not output.strip():
        raise ConfigError(
            f"spout {name} declares no output; add the fields of its tuples to the class, for example "
            'output = "line string, number long"'
        )
    try:
        return Schema.parse(output)
    except ConfigError as error:
        raise ConfigError(f"the output of spout {name} is declared incorrectly: {error}") from None
