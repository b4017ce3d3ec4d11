"""`FencedState`: what states in a table of a database or a lake share: reading, checking and writing, in that order.

Each write goes through the version that was loaded when it was checked, as a compare-and-set; a write whose outcome is
not known is judged by the version that is found afterwards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from state.base import Verdict, WriteRefused, check_combine
from state.combine import AggregatingState, check_unique, fitting_rows, rows_of
from transactional.arrow import arrow_schema
from transactional.attempt import AttemptId, TransactionAttempt, TxId
from transactional.bolts import Key
from transactional.errors import OperatingError, ProtocolError, StoreMismatch, TableConflict
from transactional.ports import Partials
from transactional.schema import Schema

Source: TypeAlias = pa.Table | tuple[str, ...]
"""Rows to be merged: key and value columns, one row per key; or Parquet files of them, not yet unique by key."""


WRITE_TRIES = 20
"""So often a write is tried that others' maintenance of the table comes before; then its attempt fails."""


class FencedState(AggregatingState, ABC):
    """A state in a table that outlives processes, and that only the newest coordinator may write."""

    _read_by: tuple[TransactionAttempt, AttemptId | None] | None = None

    @abstractmethod
    def version(self) -> AttemptId | None:
        """Load the table; the attempt id that it was last written by."""

    def fence(self, attempt_id: AttemptId) -> None:
        """Write `attempt_id` as the version, over the one that `version()` has loaded, changing no row.

        Raises `Fenced` when the version is higher, `TableConflict` when the table has moved. A version that is
        `attempt_id` already is an own earlier write.
        """
        self._check_fence(self._loaded_version(), attempt_id)
        if self._loaded_version() != attempt_id:
            self._confirm(attempt_id, lambda: self._write_version(attempt_id, None))

    def get(self, attempt: TransactionAttempt, keys: Sequence[Key]) -> dict[Key, tuple[Any, ...]]:
        """The values before this transaction of those keys that exist. Raises `Fenced` or `OperatingError`."""
        version = self.version()
        self._check_fence(version, attempt.attempt_id)
        self._read_by = (attempt, version)
        wanted = self._fitting(keys, self.key)
        # As Arrow gives them back: a time of another zone, or without one, which is UTC, is found as the instant it is.
        asked = rows_of(wanted) if self.key_names else [()] * len(keys)
        width = len(self.key)
        try:
            rows = self._rows_before(attempt.txid, wanted)
        except StoreMismatch:
            # Rows of a later transaction may have come since the version was read: then by another coordinator.
            self._check_fence(self.version(), attempt.attempt_id)
            raise
        found = {row[:width]: row[width:] for row in rows_of(rows)}
        return {key: found[each] for key, each in zip(keys, asked, strict=True) if each in found}

    def put(self, attempt: TransactionAttempt, rows: Mapping[Key, tuple[Any, ...]]) -> None:
        """Set the values of the given keys (see the port). Raises `SchemaMismatch` for values of another type."""
        source = self._fitting([(*key, *values) for key, values in rows.items()], Schema((*self.key, *self.values)))
        self._write(attempt, source, dict.fromkeys(self.values.names, "last"))

    def merge(self, attempt: TransactionAttempt, partials: Partials) -> None:
        """Combine partial aggregates with the values before this transaction (see the port).

        Raises `ConfigError` for partial aggregates in files when only Spark could merge them, and it may not be used.
        """
        check_combine(partials.combine, self.values.names, self.table)
        if partials.table is None:
            self._write(attempt, partials.parquet_files, partials.combine)
            return
        columns = Schema((*self.key, *self.values))
        self._write(attempt, partials.table.select(list(columns.names)).cast(arrow_schema(columns)), partials.combine)

    # --- what the tables do in their own way --------------------------------------------------------------------

    @abstractmethod
    def _loaded_version(self) -> AttemptId | None:
        """The version that was loaded last, or written since."""

    @abstractmethod
    def _rows_before(self, txid: TxId, wanted: pa.Table) -> pa.Table:
        """Key and value columns as they were before a transaction, of all rows with a wanted key; maybe of more."""

    @abstractmethod
    def _merge_rows(self, attempt: TransactionAttempt, source: Source, combine: Mapping[str, str]) -> None:
        """Write rows and version over the loaded version, and roll back (row T60). Raises `WriteRefused`."""

    @abstractmethod
    def _write_version(self, attempt_id: AttemptId, attempt: TransactionAttempt | None) -> None:
        """Write the version, over the loaded one, and no row. Raises `WriteRefused`."""

    # --- the rules ------------------------------------------------------------------------------------------------

    def _write(self, attempt: TransactionAttempt, source: Source, combine: Mapping[str, str]) -> None:
        version = self.version()
        verdict = self._judge(version, attempt)
        self._check_unchanged_since_read(attempt, version)
        has_rows = isinstance(source, tuple) or source.num_rows > 0
        if verdict is Verdict.WRITE and (has_rows or self._is_replay(version, attempt)):
            if not isinstance(source, tuple):
                check_unique(source, self.key.names, self.table)
            self._confirm(attempt.attempt_id, lambda: self._merge_rows(attempt, source, combine))
        elif verdict is not Verdict.NOTHING:
            self._confirm(attempt.attempt_id, lambda: self._write_version(attempt.attempt_id, attempt))
        self._wrote(attempt)

    def _is_replay(self, version: AttemptId | None, attempt: TransactionAttempt) -> bool:
        """Whether the table may hold rows of an earlier attempt of the same transaction."""
        return version is not None and self._txid_at(version) == attempt.txid

    def _check_unchanged_since_read(self, attempt: TransactionAttempt, version: AttemptId | None) -> None:
        read_by, read_at = self._read_by or (None, None)
        if read_by == attempt and version not in (read_at, attempt.attempt_id):
            raise TableConflict(
                f"state {self.table} of {self._owner} was at version {read_at} when {attempt} read it and "
                f"is at {version} now; nothing was written, the attempt has to be repeated"
            )

    def _confirm(self, attempt_id: AttemptId, write: Callable[[], None]) -> None:
        """Write, and see that the table's version is the writer's. Raises `Fenced` or `TableConflict`.

        A write that is refused although the version is still the one that was judged was disturbed by somebody's
        maintenance: the rows are the same, so what was judged holds, and it is written over the table as it is now.
        """
        judged = self._loaded_version()
        for tries_left in reversed(range(WRITE_TRIES)):
            refused: WriteRefused | None = None
            try:
                write()
                version = self._loaded_version()
            except WriteRefused as error:
                refused, version = error, self.version()
            if version == attempt_id:
                # Also after an error: the write had gone through, only its outcome was not known.
                return
            self._check_fence(version, attempt_id)
            if refused is None:
                raise ProtocolError(
                    f"state {self.table} of {self._owner}: attempt {attempt_id} was written without an error, and yet "
                    f"the table's version is {version}; something else writes its version"
                )
            if version != judged or not refused.is_conflict or not tries_left:
                kind = TableConflict if refused.is_conflict else OperatingError
                raise kind(
                    f"state {self.table} of {self._owner} is at version {version}; attempt {attempt_id} was not "
                    f"written over it: {refused}"
                ) from refused

    def _fitting(self, rows: Sequence[tuple[Any, ...]], columns: Schema) -> pa.Table:
        return fitting_rows(rows, columns, self.table)
