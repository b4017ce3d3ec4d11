"""The outbox: records for sinks that a transaction commit has stored, and that are not published yet.

`CoordinatorStore.record_commit` inserts one row for each transaction and sink, in the database transaction that moves
the committed txid. So a row exists exactly if its transaction is committed. `settle_sink` deletes rows once the sink's
target has them, and notes the newest publication in the same write. Rows are never changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from transactional.model.attempt import NO_TRANSACTION, AttemptId, TransactionAttempt, TxId

ROW_BYTES_MAX: Final = 2**18
"""The largest payload that is stored in its row; a larger one is a file. With rows of 20 MB the log of a database grows
by gigabytes, and lease renewals wait for seconds."""
ROW_BYTES_WITHOUT_FOLDER: Final = 4 * 2**20
"""The largest payload where no folder for files is known. It makes the commit some 30 ms longer."""


@dataclass(frozen=True, slots=True)
class Publication:
    """A transaction as published by a sink: the attempt that committed it, and the run that has stored its records.

    Attempt ids and transactions of a copied store may be those of the original. Its runs are others.
    """

    run: str
    attempt: TransactionAttempt


@dataclass(frozen=True, slots=True)
class PayloadFile:
    """The file with a large payload: its name in the folder of the outbox, and its size."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Boundary:
    """The position of a sink that an operator has set, by a rewind, a reset or `sinks accept`.

    Everything up to `txid` counts as published. If the target ends with an attempt up to `attempt_id`, that counts for
    nothing: the attempt was rewound, reset or accepted.
    """

    txid: TxId
    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class SinkRecords:
    """The encoded records of one sink in one transaction: Arrow's stream format, compressed, and their `count`.

    A payload begins with its checksum. With a `file` the payload is the content of that file, and `payload` has only
    the checksum. `checksum` is that of the records as the target has them, `Sink.checksum`.
    """

    payload: bytes = field(repr=False)
    count: int
    file: PayloadFile | None = None
    checksum: int | None = None

    @property
    def details(self) -> dict[str, int]:
        """The figures that are stored with the commit of the transaction."""
        return {"count": self.count} | ({} if self.checksum is None else {"checksum": self.checksum})

    @property
    def size_bytes(self) -> int:
        """The size of the payload, wherever it is."""
        return len(self.payload) if self.file is None else self.file.size_bytes


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A committed transaction that a sink has to publish: an outbox row. Its payload is that of `SinkRecords`."""

    sink: str
    publication: Publication
    count: int
    payload: bytes = field(repr=False)
    file: PayloadFile | None = None

    @property
    def size_bytes(self) -> int:
        """The size of the payload, wherever it is."""
        return len(self.payload) if self.file is None else self.file.size_bytes


@dataclass(frozen=True, slots=True)
class SinkProgress:
    """How far a sink is. `published` is its newest publication that the store knows, None if there is none since the
    `boundary`, if one was set.

    `done_txid` is the transaction up to which everything is published; transactions without records count as published.
    `waiting` is the number of transactions in the outbox, `records` the number of their records, and `size_bytes` the
    size of their payloads.
    """

    done_txid: TxId
    published: Publication | None = None
    waiting: int = 0
    records: int = 0
    size_bytes: int = 0
    boundary: Boundary | None = None

    @property
    def settled_txid(self) -> TxId:
        """The transaction of the newest publication, or of the boundary."""
        if self.published is not None:
            return self.published.attempt.txid
        return NO_TRANSACTION if self.boundary is None else self.boundary.txid

    @property
    def unsent_summary(self) -> str:
        """The number of waiting transactions, and the first of them, in words; only for a sink that has some."""
        transactions = f"{self.waiting} transaction{'' if self.waiting == 1 else 's'}"
        return f"{transactions} unsent ({self.records} records, the first of transaction {self.done_txid + 1})"
