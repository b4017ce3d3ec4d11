"""The rules of every coordinator's store: the states of an attempt, and when and how a call is refused.

An attempt is stored as

    processing   its batch is recorded
    processed    its processing phase has succeeded, the batch has its digests; for an opaque spout's transaction,
                 which no replay is compared with, this is stored with the transaction commit
    committed    its transaction is committed
    failed       it failed; `error` says in which phase and why
    given up     it did not fail itself: an earlier transaction failed, or its run ended, and either its txid is
                 retried or the batch it was built on is gone
    rewound      it was committed, and the topology was taken back to an earlier transaction

A write whose outcome is unknown (the connection broke while the database was committing it) may be repeated as it is.
It then finds that it has already happened and succeeds. Epoch and attempt id suffice to detect this: one coordinator
holds an epoch, and it draws each attempt id once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Final

from transactional.core.store import (
    AttemptRecord,
    AttemptTimes,
    Desired,
    DesiredState,
    Lease,
    StalledLease,
    TopologyStatus,
)
from transactional.core.store.history import EndedHow, RunEnd, Trouble
from transactional.core.store.progress import Phase
from transactional.model.attempt import NO_TRANSACTION, AttemptId, TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata
from transactional.model.durations import windows_text
from transactional.model.errors import (
    ConfigError,
    Fenced,
    ProtocolError,
    RewindUnfinished,
    TopologyChanged,
    TopologyInUse,
)
from transactional.model.names import (
    AGGREGATES,
    COMBINE,
    EVENT_TIMES,
    JOINED_ON,
    KEPT_FIELDS,
    SINK_TABLE,
    SINK_TOPICS,
    SINKS,
    WINDOW_FIELDS,
    WINDOW_TIME,
    WINDOWS,
)
from transactional.model.schema import Schema

PROCESSING: Final = "processing"
PROCESSED: Final = "processed"
COMMITTED: Final = "committed"
FAILED: Final = "failed"
GIVEN_UP: Final = "given up"
REWOUND: Final = "rewound"
OPEN: Final = (PROCESSING, PROCESSED)
"""The states that an attempt in flight is in."""

COMMITTERS: Final = "committers"
"""The entry of a fingerprint that may gain entries, as its sinks may: a joining committer starts at the current
txid."""
_NOT_THE_SOURCE: Final = (COMMITTERS, EVENT_TIMES, SINKS)

_FIELDS: Final = ("key", "values", "fields", WINDOW_FIELDS)
"""Entries with fields, whose order makes no difference: of a committer's table, or what a stream of the spout emits."""
_SIDES: Final = re.compile(r"(?<=\().* = .*(?=\))")
_KEY_OF_TIMED: Final = re.compile(r"(?<= time, apart by \().*(?=\))")
_MEANING: Final = (
    "key",
    "values",
    "kind",
    WINDOWS,
    COMBINE,
    AGGREGATES,
    WINDOW_TIME,
    WINDOW_FIELDS,
    KEPT_FIELDS,
    JOINED_ON,
)
"""The entries of a committer that say what the rows of its table mean; the other ones identify the table."""
ANEW: Final = (
    "Let it be as it was; or give the committer another id and its state another table, and start with "
    "--accept-changes: they begin with what comes from here on; or give the topology another id"
)
"""The advice if a table's rows would be taken for something else."""

ERROR_LENGTH_MAX: Final = 10_000

CARRIED_OUT: Final = (DesiredState.DRAINING, DesiredState.KILLED)
"""Desired states that apply once: they end with the run that carries them out; then the topology is active again."""

# --- fingerprints -----------------------------------------------------------------------------------------------


def fingerprint_json(fingerprint: Mapping[str, Any]) -> str:
    """Return the fingerprint as JSON, with the same text for the same content."""
    return json.dumps(fingerprint, sort_keys=True, default=dict)


def fingerprint_changes(stored: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Return the entries that differ, each as `path: stored …, given …`, in order of their paths.

    Mappings are compared entry by entry, everything else as a whole; an empty mapping equals a missing one. A committer
    or sink that is only in `given` has joined, as has a topic of a sink, which is not a change.
    """
    stored_entries, given_entries = dict(_entries(stored)), dict(_entries(given))
    stored_parts = {path[:2] for path in stored_entries if path[0] in (COMMITTERS, SINKS)}
    return [
        f"{'.'.join(path)}: stored {_entry_text(path, stored_entries)}, given {_entry_text(path, given_entries)}"
        for path in sorted(stored_entries.keys() | given_entries.keys())
        if _in_order(path, stored_entries.get(path)) != _in_order(path, given_entries.get(path))
        and not _is_new(path, stored_entries, stored_parts)
        # A stream may get an event time, or lose it with its windows. The table of a sink may not exist yet.
        if (path[0] != EVENT_TIMES and path[::2] != (SINKS, SINK_TABLE))
        or (path in stored_entries and path in given_entries)
    ]


def _entry_text(path: tuple[str, ...], entries: Mapping[tuple[str, ...], str]) -> str:
    """Return an entry as messages show it."""
    entry = entries.get(path, "nothing")
    return windows_text(entry) if path[-1] == WINDOWS else entry


def _in_order(path: tuple[str, ...], entry: str | None) -> str | None:
    """An entry as it is compared: its fields by their names, and the sides of a join, wherever they stand."""
    if entry is not None and path[-1] == WINDOWS:
        return _by_name(entry)
    if entry is not None and AGGREGATES in path[:-1]:
        return _SIDES.sub(lambda sides: " = ".join(sorted(sides[0].split(" = "))), entry)
    has_fields = path[-1].rpartition(".")[2] in _FIELDS or KEPT_FIELDS in path[:-1]
    if entry is None or not has_fields or not entry.startswith('"'):
        return entry
    try:
        return str(sorted(map(str, Schema.parse(json.loads(entry)))))
    except ConfigError:
        return entry  # a spout of one's own may call something else so


def _by_name(windows: str | None) -> str | None:
    """Windows in words, with the fields of their key by name. A bolt that counts finds its tuples by their order."""
    return windows and _KEY_OF_TIMED.sub(lambda key: ", ".join(sorted(key[0].split(", "))), windows)


def _is_new(
    path: tuple[str, ...], stored_entries: Collection[tuple[str, ...]], stored_parts: Collection[tuple[str, ...]]
) -> bool:
    """Return whether an entry belongs to a committer or sink that has joined, or is a topic that a sink has gained."""
    if path[0] == SINKS and path[2:3] == (SINK_TOPICS,):
        return path not in stored_entries
    return path[0] in (COMMITTERS, SINKS) and len(path) > 1 and path[:2] not in stored_parts


def _entries(fingerprint: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    for name, entry in fingerprint.items():
        if isinstance(entry, Mapping):
            yield from _entries(entry, (*path, str(name)))
        else:
            yield (*path, str(name)), json.dumps(entry, sort_keys=True, default=dict)


def check_fingerprint(topology_id: str, stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise `TopologyChanged`, listing every entry that differs, unless only committers were added."""
    changes = [] if stored == given else fingerprint_changes(stored, given)
    if changes:
        raise TopologyChanged(
            f"topology {topology_id!r} is not the one whose progress the store holds: {'; '.join(changes)}. Give it "
            "another id to start over, or start it with --accept-changes (accept_changes=True) if the stored progress "
            f"still applies; `transactional reset {topology_id}` deletes the stored progress"
        )


def keeps_recorded(
    status: TopologyStatus, given: Mapping[str, Any], recorded: Iterable[BatchMetadata], *, accept_changes: bool
) -> bool:
    """Return whether a run with this fingerprint may use the recorded batches. If False, it starts without them.

    Before the first transaction commit nothing depends on the stored fingerprint but the recorded batches. The same
    source can use them. Those of another source are deleted as long as no table can have been written from them in a
    way that another batch does not undo: such batches have digests. A committer that has joined has to stay: its table
    would be behind when it comes back. Raises `TopologyChanged`.
    """
    is_new = not status.fingerprint  # no start has succeeded yet
    if not is_new and not accept_changes and not _committers(status.fingerprint) <= _committers(given):
        check_fingerprint(status.topology_id, status.fingerprint, given)
    if is_new or (status.committed_txid == NO_TRANSACTION and _source(status.fingerprint) == _source(given)):
        return True
    if status.committed_txid == NO_TRANSACTION and not any(batch.digests for batch in recorded):
        return False
    for loss in meanings_lost(status.fingerprint, given):
        raise TopologyChanged(f"topology {status.topology_id!r}: {loss}, not with --accept-changes either. {ANEW}")
    if not accept_changes:
        check_fingerprint(status.topology_id, status.fingerprint, given)
    return True


def meanings_lost(fingerprint: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the changes by which a table's rows would be taken for something else, which nobody can accept.

    Open windows would be taken for other windows, the results of one aggregate for those of another one, stored values
    for values of another type.
    """
    for component, stored in fingerprint.get(COMMITTERS, {}).items():
        current = given.get(COMMITTERS, {}).get(component)
        if current is not None and _table(current) == _table(stored):
            for change in (
                *_other_windows(stored, current),
                *_other_columns(stored, current),
                *_other_types(stored, current),
            ):
                yield f"the table of {component!r} {change}"


def _other_windows(stored: Mapping[str, Any], current: Mapping[str, Any]) -> Iterator[str]:
    if WINDOWS in stored and _by_name(current.get(WINDOWS)) != _by_name(stored[WINDOWS]):
        yield (
            f"has open windows of {windows_text(stored[WINDOWS])}, and the topology now has "
            f"{windows_text(current.get(WINDOWS, 'none'))}: what is counted in them can not be counted again"
        )


def _other_columns(stored: Mapping[str, Any], current: Mapping[str, Any]) -> Iterator[str]:
    stored_ways, current_ways = stored.get(COMBINE, {}), current.get(COMBINE, {})
    for column in stored_ways.keys() & current_ways.keys():
        if stored_ways[column] != current_ways[column]:
            yield (
                f"has in column {column!r} values that are combined by {stored_ways[column]}, and the topology now "
                f"combines them by {current_ways[column]}: what is stored can not be turned into that"
            )


def _other_types(stored: Mapping[str, Any], current: Mapping[str, Any]) -> Iterator[str]:
    for stream in stored.get(JOINED_ON, {}).keys() - current.get(JOINED_ON, {}).keys():
        yield f"keeps tuples of open windows of {stream!r}, which is no longer joined: they would be lost"
    stored_fields, current_fields = _kept_fields(stored), _kept_fields(current)
    for name in stored_fields.keys() & current_fields.keys():
        types = {field.name: field.type for field in Schema.parse(stored_fields[name])}
        for field in Schema.parse(current_fields[name]):
            if types.get(field.name, field.type) != field.type:
                window_text = "of open windows " if WINDOWS in stored else ""
                yield (
                    f"keeps tuples {window_text}whose field {field.name!r} is {types[field.name]}, and it is "
                    f"{field.type} now: what is kept can not be turned into that"
                )


def _kept_fields(entry: Mapping[str, Any]) -> Mapping[str, str]:
    """The fields of kept tuples of a committer's entry: those of a windowed bolt, and by stream or column."""
    return {"": entry.get(WINDOW_FIELDS, ""), **entry.get(KEPT_FIELDS, {})}


def _table(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a committer's entry that identifies its table."""
    return {name: content for name, content in entry.items() if name not in _MEANING}


def _committers(fingerprint: Mapping[str, Any]) -> set[str]:
    return set(fingerprint.get(COMMITTERS, ()))


def _source(fingerprint: Mapping[str, Any]) -> dict[tuple[str, ...], str | None]:
    return {path: _in_order(path, entry) for path, entry in _entries(fingerprint) if path[0] not in _NOT_THE_SOURCE}


STALLED_LEASES = 2
"""The number of lease lengths after which an unchanged lease counts as abandoned."""

# --- leases -----------------------------------------------------------------------------------------------------


def check_free(status: TopologyStatus, owner: str, now_ms: int, stalled: StalledLease | None = None) -> None:
    """Raise `TopologyInUse` while the lease of an owner other than the given one is valid, and is not `stalled`."""
    if status.is_leased and status.owner != owner and not is_stalled(status, stalled):
        left_ms = (status.leased_until_ms or now_ms) - now_ms
        raise TopologyInUse(
            f"topology {status.topology_id!r} is coordinated by {status.owner!r}, whose lease (epoch {status.epoch}) "
            f"is valid until {_time(status.leased_until_ms)}, {left_ms} ms from now by the store's clock. Stop that "
            "process, which releases the lease; if it is already dead, start again once the lease has expired. With "
            "--standby, or standby=True, this process waits, and takes over as soon as that one has left"
            f"{_too_long(status, left_ms)}"
        )


def is_stalled(status: TopologyStatus, stalled: StalledLease | None) -> bool:
    """Return whether the lease is still the one that was observed not to be renewed."""
    return stalled is not None and (status.epoch, status.leased_until_ms) == (stalled.epoch, stalled.leased_until_ms)


def _too_long(status: TopologyStatus, left_ms: int) -> str:
    """Return the advice on a lease that ends later than its leader can have renewed it for; else ""."""
    length_ms = status.lease_length_ms
    if length_ms is None or left_ms <= length_ms:
        return ""
    return (
        f". The lease is only {length_ms} ms long, so the clock that wrote its end was ahead: if nobody renews it, a "
        f"standby takes it after {STALLED_LEASES * length_ms} ms of its own"
    )


def check_not_rewinding(status: TopologyStatus) -> None:
    """Raise `RewindUnfinished` if a rewind was begun: some tables may be at its transaction already, others not."""
    if status.rewinding_to is not None:
        raise RewindUnfinished(
            f"topology {status.topology_id!r} is being taken back from transaction {status.committed_txid} to "
            f"{status.rewinding_to}, and that has not been finished. Run `transactional rewind MODULE:TOPOLOGY "
            f"--to-txid {status.rewinding_to} --yes` again, which finishes it; nothing was changed"
        )


def desired_of(state: DesiredState, stop_at_ms: int | None, now_ms: int) -> Desired:
    """Return the stored desired state, with the remaining time by the store's clock."""
    return Desired(state, None if stop_at_ms is None else max(0, stop_at_ms - now_ms))


def desired_at_start(status: TopologyStatus, now_ms: int) -> Desired:
    """The desired state for a run that takes the lease now: a kill whose deadline has passed was for a previous run."""
    desired = desired_of(status.desired, status.stop_at_ms, now_ms)
    return Desired() if desired.stop_in_ms == 0 else desired


def is_held(lease: Lease, status: TopologyStatus) -> bool:
    """True if `lease` is the current one: then its writes are allowed, even after it has expired."""
    return (status.epoch, status.owner) == (lease.epoch, lease.owner)


def fenced(lease: Lease, status: TopologyStatus | None) -> Fenced:
    """The error for a lease that is not the current one, naming the current holder."""
    return Fenced(
        f"coordinator {lease.owner!r} (epoch {lease.epoch}) may no longer change topology {lease.topology_id!r}: "
        f"{_holder(lease, status)}. Nothing was written; end this process"
    )


def _holder(lease: Lease, status: TopologyStatus | None) -> str:
    if status is None:
        return "the store does not know this topology"
    if status.owner is not None:
        return f"{status.owner!r} has taken over (epoch {status.epoch}, leased until {_time(status.leased_until_ms)})"
    if status.epoch == lease.epoch:
        return "it has released its lease"
    return f"another coordinator had taken over and released the lease since (epoch {status.epoch})"


def _time(at_ms: int | None) -> str:
    if at_ms is None:
        return "no time"
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# --- writes that are refused ----------------------------------------------------------------------------------------


def check_same_attempt(
    lease: Lease, attempt: TransactionAttempt, status: TopologyStatus, recorded_txid: TxId | None
) -> None:
    """Return if the refused attempt is already recorded, by this lease; otherwise raise why it is refused.

    `recorded_txid` is the txid under which the store knows the attempt id.
    """
    if recorded_txid == attempt.txid and attempt.attempt_id > lease.fence_id:
        return
    if attempt.attempt_id <= status.attempt_id:
        raise Fenced(
            f"attempt {attempt} of topology {lease.topology_id!r} was not drawn from its counter, which already is at "
            f"{status.attempt_id}; nothing was written; end this process"
        )
    if attempt.txid > status.committed_txid:
        raise ProtocolError(
            f"attempt {attempt} of topology {lease.topology_id!r} leaves a gap: transaction {attempt.txid - 1} is "
            f"neither recorded nor committed, the committed txid is {status.committed_txid}"
        )
    raise ProtocolError(
        f"attempt {attempt} of topology {lease.topology_id!r} arrived after transaction {status.committed_txid} was "
        "committed already"
    )


def check_same_commit(attempt: TransactionAttempt, status: TopologyStatus, committed_by: AttemptId | None) -> None:
    """Return if `attempt` is the one that committed the committed txid; otherwise raise `ProtocolError`."""
    if (status.committed_txid, committed_by) != (attempt.txid, attempt.attempt_id):
        raise ProtocolError(
            f"transaction {attempt.txid} (attempt {attempt}) of topology {status.topology_id!r} can't be committed: "
            f"the committed txid is {status.committed_txid} and moves by one"
        )


def can_not_rewind(status: TopologyStatus, txid: TxId) -> ProtocolError:
    """The error for a rewind that can't be begun, or that is not the one that was begun."""
    doing = "" if status.rewinding_to is None else f", and it is being taken back to {status.rewinding_to}"
    return ProtocolError(
        f"topology {status.topology_id!r} can't be taken back to transaction {txid}: the committed txid is "
        f"{status.committed_txid}{doing}; or the store does not know the batch of {txid}"
    )


def can_not_recount(status: TopologyStatus, attempt_id: AttemptId) -> ProtocolError:
    """The error for a counter that would continue below what has committed."""
    return ProtocolError(
        f"the attempts of topology {status.topology_id!r} can't be counted from {attempt_id} on: transaction "
        f"{status.committed_txid} was committed by a later one"
    )


def not_in_flight(lease: Lease, attempt: TransactionAttempt) -> ProtocolError:
    """The error for an attempt that should be the current one of its txid, and is not."""
    return ProtocolError(f"attempt {attempt} of topology {lease.topology_id!r} is not in flight in the store")


def failure_text(phase: Phase, reason: str) -> str:
    """Return the error of an attempt as it is stored: phase and reason, as `storable`."""
    return storable(f"{phase.value}: {reason}")


def storable(text: str) -> str:
    """A text from elsewhere, bounded, and without what a database can't store (NUL, surrogates)."""
    return text[:ERROR_LENGTH_MAX].replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def given_up_text(end: RunEnd | None) -> str | None:
    """The error of attempts in flight when their run ended; None if the run did not fail."""
    if end is None or end.how is not EndedHow.FAILED:
        return None
    return storable(f"the run ended: {end.code + ': ' if end.code else ''}{end.reason or 'no reason is known'}")


def times_of(record: AttemptRecord) -> AttemptTimes:
    """Return an attempt without its batch."""
    return AttemptTimes(**{field.name: getattr(record, field.name) for field in fields(AttemptTimes)})


def state_of(status: TopologyStatus) -> str:
    """One word: `running`, `failing` (running, and retrying), `rewinding` (until it is finished, nothing else can
    start), how its last run ended, or `not running`."""
    if status.rewinding_to is not None:
        return "rewinding"
    if status.is_leased:
        return "running" if status.trouble is None else "failing"
    if status.run is not None and status.run.end is not None:
        return status.run.end.how.value
    return "not running"


def lag_in(details: Mapping[str, Any] | None) -> int | None:
    """Return the lag that was recorded with a transaction commit."""
    lag = (details or {}).get("lag")
    return lag if isinstance(lag, int) else None


def upkeep_in(details: Mapping[str, Any] | None) -> dict[str, str]:
    """The committers whose tables could not be maintained when a transaction was committed, with what fails."""
    return {str(component): str(reason) for component, reason in (details or {}).get("upkeep", {}).items()}


def letters_in(details: Mapping[str, Any] | None) -> int:
    """How many tuples a transaction has set aside, as was recorded with its commit."""
    letters = (details or {}).get("letters")
    return letters if isinstance(letters, int) else 0


def trouble_after(previous: Trouble | None, txid: TxId, error: str, at_ms: int) -> Trouble:
    """A topology's problem once this transaction has failed: the same problem as before, if it had one."""
    if previous is None:
        return Trouble(at_ms, txid, error)
    return Trouble(previous.since_ms, max(previous.txid, txid), error)


def check_free_to_reset(status: TopologyStatus, now_ms: int) -> None:
    """Raise `TopologyInUse` while any lease is valid."""
    if status.is_leased:
        left_ms = (status.leased_until_ms or now_ms) - now_ms
        raise TopologyInUse(
            f"topology {status.topology_id!r} is coordinated by {status.owner!r}, whose lease is valid for {left_ms} "
            "ms: it can't be reset while it is running. Stop that process; if it is already dead, wait for the lease "
            "to expire"
        )
