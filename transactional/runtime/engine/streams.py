"""Translates the stored progress of a topology of streams to its current stream names, and logs changed streams.

Committed positions of a stream that was removed are kept, and not read. If a batch in flight has records of a removed
stream, the topology is refused, because the records would be lost. The order of declaration makes no difference.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, overload

from transactional.core.ports.stream_names import RUNS_MAX, StreamNames, split_stream_name
from transactional.core.store import StoreReader
from transactional.core.store.history import RunRecord
from transactional.core.store.progress import Progress
from transactional.model.attempt import NO_TRANSACTION
from transactional.model.errors import TopologyChanged
from transactional.topology.topology import Topology

_log = logging.getLogger(__name__)


class _Runs(Sequence[RunRecord]):
    """The runs of a topology. The store is queried for them once, and only if they are needed."""

    def __init__(self, query: Callable[[], Sequence[RunRecord]]) -> None:
        self._query = query

    @cached_property
    def _rows(self) -> Sequence[RunRecord]:
        return self._query()

    @overload
    def __getitem__(self, index: int) -> RunRecord: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[RunRecord]: ...

    def __getitem__(self, index: int | slice) -> RunRecord | Sequence[RunRecord]:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)


def stream_names(topology: Topology, store: StoreReader) -> StreamNames:
    """Return the translator of the topology's partition names. Raises `StoreUnavailable`."""
    runs = _Runs(partial(store.runs, topology.id, limit=RUNS_MAX))
    return StreamNames(topology.spout.parts.streams.names, runs, topology.spout_id)


def fingerprint_as_stored(topology: Topology, store: StoreReader, fingerprint: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the topology's fingerprint with the stream names of the stored one, to compare the two. Raises
    `StoreUnavailable`."""
    status = next(iter(store.status(topology.id)), None)
    if status is None:
        return fingerprint
    return stream_names(topology, store).fingerprint(fingerprint, status.fingerprint, status.committed_txid)


def progress_of_streams(
    topology: Topology, store: StoreReader, progress: Progress, *, accept_changes: bool
) -> Progress:
    """Return the progress to start from, with the current stream names.

    Raises `TopologyChanged` if a batch in flight has records of a removed stream, and, unless `accept_changes`, if no
    stored run says which stream the recorded positions belong to.
    """
    names, txid = stream_names(topology, store), progress.committed_txid
    for batch in (progress.committed_batch, *progress.recorded.values()):
        if names.rests_on_guess(batch, txid) and not accept_changes:
            raise TopologyChanged(
                f"topology {topology.id!r} has positions that name no stream, and no run is stored that says whose "
                f"they are: they are taken for those of {names.guess_first_stream(batch)!r}, the first stream that no "
                "other one names. If that is so, start with --accept-changes (accept_changes=True); otherwise declare "
                "their stream first"
            )
    committed = names.with_current_names(progress.committed_batch, txid)
    recorded = {number: names.with_current_names(batch, txid) for number, batch in progress.recorded.items()}
    for number, batch in recorded.items():
        for stream, has_records in names.removed_streams(batch).items():
            if has_records:
                raise TopologyChanged(
                    f"transaction {number} of topology {topology.id!r} is recorded and not committed, and has records "
                    f"of stream {stream!r}, which the topology no longer has: they would be lost. Run it with this "
                    "stream until it is drained, and take the stream out then"
                )
    if txid != NO_TRANSACTION and names.streams:
        _log_changes(names, topology, {split_stream_name(partition)[0] for partition in committed.ranges})
    return replace(progress, committed_batch=committed, recorded=recorded)


def _log_changes(names: StreamNames, topology: Topology, earlier: set[str]) -> None:
    for stream in sorted(earlier - set(names.streams)):
        _log.warning(
            "topology %r no longer has stream %r: its positions are kept, and it is not read", topology.id, stream
        )
    for stream in names.streams if earlier else ():
        if stream not in earlier:
            _log.warning("topology %r has a new stream, %r: it is read from its start", topology.id, stream)
