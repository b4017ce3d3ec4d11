"""`KeyedSink`: the base of sinks whose target holds no position, and recognizes a record by its key.

The outbox has the rows of a transaction before it is published, and loses them afterwards. A leader that finds rows
there sends their records, which the target may already have, once more with the same keys. The key of a record has the
attempt and not the transaction: what is computed again after a rewind is new content with a new key. It has the run,
too, because a store that was restored from a backup counts attempts from there once more. Keys do not keep out a leader
that was suspended during a rewind: its late records have keys that the target has never seen. A target that remembers
the highest fence id, and refuses requests with a lower one, keeps it out.
"""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final
from urllib.parse import quote

import pyarrow as pa

from transactional.core.ports import PublishedRecords, Sink, SinkOwner
from transactional.model.attempt import AttemptId, TransactionAttempt
from transactional.model.schema import Schema

NUMBER: Final = "__record__"
"""The column with the number of a record in its attempt. Records that are set aside leave the others their numbers."""


class KeyedSink(Sink):
    """A sink for a target that takes each key once, such as a web service with idempotency keys.

    A subclass has `identity`, `encode` and `deliver`, and what else of `Sink` it needs.
    """

    has_position: ClassVar[bool] = False
    _owner: SinkOwner | None = None

    @property
    def fence_id(self) -> AttemptId:
        """The fence id of the leader that has opened the sink, higher than that of every earlier leader and rewind.

        A sink sends it in `open`, and with each request in `deliver`, to a target that refuses lower ones. For such a
        refusal `deliver` raises `SinkUnavailable` with `is_fenced`.
        """
        assert self._owner is not None, "it is open"
        return self._owner.fence_id

    @abstractmethod
    def deliver(self, keys: Sequence[str], records: pa.Table) -> None:
        """Send the encoded records of one transaction to the target, each with its key, in their order.

        The target may have some of them, under the same keys. Raises `SinkUnavailable` unless it has all of them
        afterwards, and `RecordRefused` for a record that it never takes, with the number of its row.
        """

    def check_input(self, fields: Schema, *, used_by: str) -> None:
        """Raise `ConfigError` if a stream lacks fields that the sink needs. By default any stream is taken."""

    def stage(self, attempt: TransactionAttempt, records: pa.Table) -> pa.Table:
        return records.append_column(NUMBER, pa.array(range(records.num_rows), pa.int64()))

    def look(self, owner: SinkOwner) -> None:
        return None

    def open(self, owner: SinkOwner, *, has_published: bool) -> None:
        self._owner = owner

    def position(self) -> None:
        return None

    def publish(self, group: Sequence[PublishedRecords]) -> None:
        assert self._owner is not None, "it is open"
        for published in group:
            self.deliver(_record_keys(self._owner, published), published.records.drop_columns(NUMBER))

    def close(self) -> None:
        """Release the connections of the sink. By default there are none."""


def _record_keys(owner: SinkOwner, published: PublishedRecords) -> list[str]:
    """Return the key of each record: store, topology, sink, attempt with a checksum of its run, and number."""
    publication = published.publication
    run = f"{zlib.crc32(publication.run.encode()):08x}"
    names = (owner.store_id, owner.topology_id, owner.sink, f"{publication.attempt.attempt_id}-{run}")
    prefix = "/".join(quote(name, safe="") for name in names)
    return [f"{prefix}/{number}" for number in published.records[NUMBER].to_pylist()]
