"""`ContractSpout`: adapts a user's implementation of `spouts.contracts` to a `Spout`, on the driver's side.

A batch stores the user's metadata per partition, as JSON. Its offsets are only counters: [k, k + 1) is batch number k
that reads from the partition, [k, k) means that this batch reads nothing of it. So positions, digests and replays work
as they do for the offsets of a log. A contract without partitions gets a partition for each of its parts. Mistakes in
the contract are reported with the name of the class and the method.
"""

from __future__ import annotations

import copy
import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Self

from spouts.contract_reader import ContractReader, PartitionsReader, PartsReader, attribute_errors_to
from spouts.user_spout_protocols import PartitionedUserSpout, UnpartitionedUserSpout, UserSpout
from transactional.core.ports import Spout
from transactional.core.ports.spout_parts import Backlog, Planning, Replays, SpoutParts
from transactional.model.batch import BatchLimit, BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.errors import ConfigError
from transactional.model.facts import Listing
from transactional.model.schema import Schema
from transactional.model.user_code.stored_values import read_identity, shorten, to_json_and_back

METADATA_CHARACTERS_MAX = 1_000_000
"""The maximum length of the JSON of one partition's metadata: a batch is written to the store as a whole."""

_PART = "part"
_START = Offset(0)


class ContractSpout(Spout, Planning, Backlog, Replays):
    """The driver's side of a contract, as the engine sees it (`transactional.core.ports.Spout`)."""

    def __init__(self, contract: UserSpout, *, replays_exactly: bool) -> None:
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
        """True for a transactional contract, False for an opaque one."""
        return self._replays_exactly

    @property
    def parts(self) -> SpoutParts:
        """The spout's own planning, backlog and checks."""
        return replace(super().parts, planning=self, backlog=self, replays=self)

    def identity(self) -> Mapping[str, str]:
        """Return the class, the fields, and the identity that the contract adds."""
        with attribute_errors_to(f"{self.name}.identity"):
            contract_identity = read_identity(self._contract)
        return {"kind": self.name, "fields": str(self.output), **contract_identity}

    def open(self) -> None:
        with attribute_errors_to(f"{self.name}.open"):
            self._contract.open()

    @abstractmethod
    def copy_unopened(self) -> Self:
        """Return a spout with a copy of the contract as it was before `open`."""

    def close(self) -> None:
        with attribute_errors_to(f"{self.name}.close"):
            self._contract.close()

    @property
    def can_limit_batches(self) -> bool:
        """True: a contract that can't limit its batches refuses the first limit."""
        return True

    def limit_batches(self, limit: BatchLimit) -> None:
        """Pass the limit to the contract."""
        with attribute_errors_to(f"{self.name}.limit_batches"):
            self._contract.limit_batches(limit)

    def plan(self, previous_batch: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        """Return the batch after `previous_batch`: the new metadata of the contract, and the old ones of all other
        partitions.

        Raises `BoltFailed` if the contract raises an exception, `ConfigError` for metadata that JSON does not preserve.
        """
        new_metadata = self._next_metadata(previous_batch) if replay or self._is_ready() else {}
        if not new_metadata and not replay:
            return None
        positions = previous_batch.positions()
        carried_ranges = {partition: OffsetRange(position, position) for partition, position in positions.items()}
        new_ranges = {partition: _single_step(positions.get(partition, _START)) for partition in new_metadata}
        return BatchMetadata(carried_ranges | new_ranges, metadata={**previous_batch.metadata, **new_metadata})

    def _is_ready(self) -> bool:
        with attribute_errors_to(f"{self.name}.is_ready"):
            self._was_ready = self._contract.is_ready()
        return self._was_ready

    @property
    def has_ended(self) -> bool:
        """False if the contract was not ready at the last planning."""
        return self._was_ready

    @abstractmethod
    def _next_metadata(self, previous_batch: BatchMetadata) -> dict[PartitionId, Any]:
        """Return the metadata of the partitions that the next batch reads."""

    @abstractmethod
    def check_replay(self, batch: BatchMetadata) -> None:
        """Call `check_replay` of a transactional contract, which raises `BatchLost`."""

    @abstractmethod
    def reader(self) -> ContractReader:
        """Return the reader that calls the contract on the executors."""

    @abstractmethod
    def committed(self, batch: BatchMetadata) -> None:
        """Notify the contract of a transaction commit, unless the batch is empty."""


class PartsContractSpout(ContractSpout):
    """A `TransactionalSpout`: all parts of a batch have the same metadata."""

    def __init__(self, contract: UnpartitionedUserSpout, parts: int) -> None:
        super().__init__(contract, replays_exactly=True)
        self._whole, self._parts = contract, parts
        self._reader = PartsReader(self.output, copy.copy(contract))

    def _next_metadata(self, previous_batch: BatchMetadata) -> dict[PartitionId, Any]:
        last_metadata = previous_batch.metadata.get(PartitionId(_PART, 0))
        previous = None if last_metadata is None else copy.deepcopy(last_metadata["metadata"])
        call_name = f"{self.name}.initialize_transaction"
        with attribute_errors_to(call_name):
            metadata = self._whole.initialize_transaction(previous)
        if metadata is None:
            return {}
        stored_metadata = {"parts": self._parts, "metadata": _store_metadata(call_name, metadata)}
        return {PartitionId(_PART, part): stored_metadata for part in range(self._parts)}

    def check_replay(self, batch: BatchMetadata) -> None:
        for _, stored_metadata in _read_metadata(batch)[:1]:
            with attribute_errors_to(f"{self.name}.check_replay"):
                self._whole.check_replay(stored_metadata["metadata"])

    def copy_unopened(self) -> Self:
        return type(self)(copy.copy(self._reader.contract), self._parts)

    def reader(self) -> PartsReader:
        """Return the reader of the parts, with the contract as it was before `open`."""
        return self._reader

    def committed(self, batch: BatchMetadata) -> None:
        for _, stored_metadata in _read_metadata(batch)[:1]:
            self._whole.committed(stored_metadata["metadata"])


class PartitionsContractSpout(ContractSpout):
    """A contract over partitions; an opaque one has no `check_replay`."""

    def __init__(self, contract: PartitionedUserSpout, check_replay: Callable[[str, Any], None] | None) -> None:
        super().__init__(contract, replays_exactly=check_replay is not None)
        self._partitioned, self._check_replay = contract, check_replay
        self._reader = PartitionsReader(self.output, copy.copy(contract))
        self._answers: dict[PartitionId, Any] | None = None

    def _next_metadata(self, previous_batch: BatchMetadata) -> dict[PartitionId, Any]:
        answers = self._answers = {
            PartitionId(name, 0): self._next_metadata_of(name, previous_batch) for name in self._partition_names()
        }
        return {partition: answer for partition, answer in answers.items() if answer is not None}

    def _partition_names(self) -> list[str]:
        call_name = f"{self.name}.partitions"
        with attribute_errors_to(call_name):
            return _check_names(call_name, self._partitioned.partitions())

    def list_partitions(self, previous_batch: BatchMetadata) -> dict[PartitionId, Listing]:
        """Return the contract's partitions as the last planning has seen them.

        If nothing was planned, because the contract is not ready, all of them count as not answering.
        """
        answers, self._answers = self._answers, None
        if answers is None:
            return {PartitionId(name, 0): Listing.AWAY for name in self._partition_names()}
        return {partition: Listing.EMPTY if answer is None else Listing.UNREAD for partition, answer in answers.items()}

    def _next_metadata_of(self, name: str, previous_batch: BatchMetadata) -> Any:
        call_name = f"{self.name}.next_batch for partition {name!r}"
        with attribute_errors_to(call_name):
            metadata = self._partitioned.next_batch(
                name, copy.deepcopy(previous_batch.metadata.get(PartitionId(name, 0)))
            )
        return None if metadata is None else _store_metadata(call_name, metadata)

    def check_replay(self, batch: BatchMetadata) -> None:
        if self._check_replay is None:
            return
        for partition, metadata in _read_metadata(batch):
            with attribute_errors_to(f"{self.name}.check_replay for partition {partition.source!r}"):
                self._check_replay(partition.source, metadata)

    def copy_unopened(self) -> Self:
        contract: Any = copy.copy(self._reader.contract)
        return type(self)(contract, None if self._check_replay is None else contract.check_replay)

    def reader(self) -> PartitionsReader:
        """Return the reader of the partitions, with the contract as it was before `open`."""
        return self._reader

    def committed(self, batch: BatchMetadata) -> None:
        metadata_by_name = {partition.source: metadata for partition, metadata in _read_metadata(batch)}
        if metadata_by_name:
            self._partitioned.committed(metadata_by_name)


def _store_metadata(call_name: str, metadata: Any) -> Any:
    """Return metadata as they come back from JSON. Raises `ConfigError` if they differ, or if the JSON is too long."""
    stored_metadata = to_json_and_back(call_name, metadata)
    if (length := len(json.dumps(stored_metadata))) > METADATA_CHARACTERS_MAX:
        raise ConfigError(
            f"{call_name} returned metadata of {length} characters, at most {METADATA_CHARACTERS_MAX} are kept per "
            "partition: return where the tuples are, not what they are"
        )
    return stored_metadata


def _read_metadata(batch: BatchMetadata) -> list[tuple[PartitionId, Any]]:
    """Return the partitions that the batch reads, and copies of their metadata for user code."""
    return [(partition, copy.deepcopy(batch.metadata[partition])) for partition, _ in batch.non_empty()]


def _single_step(position: Offset) -> OffsetRange:
    return OffsetRange(position, Offset(position + 1))


def _check_names(call_name: str, partitions: Any) -> list[str]:
    names = list(partitions) if isinstance(partitions, Iterable) and not isinstance(partitions, str) else None
    if names is None or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            f"{call_name} returned {shorten(partitions if names is None else names)}; it must return the partitions' "
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
