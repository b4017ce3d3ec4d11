"""`Relays`: the threads in which the leader publishes, one for each sink of a topology."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from transactional.core.ports import Sink
from transactional.core.store import CoordinatorStore, Lease
from transactional.model.attempt import NO_TRANSACTION, TxId
from transactional.model.config import TopologyConfig
from transactional.model.errors import ConfigError, OperatingError, StoreUnavailable
from transactional.model.plumbing.pools import DaemonPool
from transactional.runtime.publishing.payload_files import PayloadFolder
from transactional.runtime.publishing.relay import Relay
from transactional.runtime.publishing.settling import (
    check_staged_files,
    check_waiting_sinks,
    fence_removed_sinks,
    settle_sinks,
)

RETRY_S: Final = 1.0
"""The pause of a relay after an error of its target or of the store."""
WARNED_EVERY_S: Final = 60.0

_log = logging.getLogger(__name__)


class Relays:
    """The relays of a topology. All methods but those of the threads are called by the driver's thread."""

    def __init__(
        self,
        sinks: Mapping[str, Sink],
        store: CoordinatorStore,
        config: TopologyConfig,
        files: PayloadFolder,
        sending_sinks: Collection[Sink] = (),
    ) -> None:
        self._sending_sinks = sending_sinks
        self.sinks, self._store, self._config, self._files = sinks, store, config, files
        self._relays: dict[str, Relay] = {}
        self._committed = threading.Condition()
        self._is_closing = False
        self._lease: Lease | None = None
        self._reported_txid = NO_TRANSACTION
        self._pool = DaemonPool(len(sinks), "relay")

    def prepare(self) -> None:
        """Let each sink read from its target what its tasks need. Raises `ConfigError` and `SinkUnavailable`."""
        for name, sink in self.sinks.items():
            if sink.needs_disk and self._config.durability != "disk":
                raise ConfigError(
                    f"sink {name!r} is a {sink.kind}, whose files have to survive a power cut, and the topology has "
                    f"durability={self._config.durability!r}: use durability='disk'"
                )
            sink.prepare()
        for sink in self._sending_sinks:
            sink.prepare()

    def check(self, lease: Lease, fingerprint: Mapping[str, Any]) -> None:
        """Raise `ConfigError` if waiting transactions could not be sent by a topology with this fingerprint.

        Otherwise the sinks that it no longer has are fenced. Raises `SinkUnavailable`.
        """
        check_waiting_sinks(fingerprint, self._store, lease)
        fence_removed_sinks(self.sinks, fingerprint, self._store, lease)

    def settle(self, lease: Lease, store_id: str) -> None:
        """Open all sinks and compare them with the store. Nothing may be committed before this has returned."""
        if not self.sinks:
            return
        self._lease = lease
        self._files.begin(self._store, lease)
        check_staged_files(self.sinks, self._store, lease, store_id, self._files)
        self._settle(self.sinks, lease, store_id)
        for name, sink in self.sinks.items():
            reopen = partial(self._settle, {name: sink}, lease, store_id)
            self._relays[name] = Relay(name, sink, self._store, lease, reopen, _monotonic_ms, self._files)

    def _settle(self, sinks: Mapping[str, Sink], lease: Lease, store_id: str) -> None:
        renew = partial(self._store.renew, lease, lease_ms=self._config.lease_ms)
        settle_sinks(sinks, self._store, lease, store_id, renew)
        self._files.sweep(self._store)

    def backlog(self, lease: Lease) -> tuple[int, int]:
        """The number of committed transactions that wait to be published, and the size of their payloads."""
        if not self.sinks:
            return 0, 0
        progresses = self._store.sinks(lease.topology_id).values()
        return max((sink.waiting for sink in progresses), default=0), sum(sink.size_bytes for sink in progresses)

    def start(self, report_settled: Callable[[TxId], None], fail: Callable[[BaseException], None]) -> None:
        """Start the threads.

        They call `report_settled` with the transaction up to which all sinks have published, and `fail` with the
        error that has ended one of them.
        """
        for relay in self._relays.values():
            self._pool.submit(self._serve, relay, report_settled, fail)

    def confirm(self, txid: TxId) -> None:
        """Publish a transaction, whose commit the store has confirmed."""
        with self._committed:
            for relay in self._relays.values():
                relay.confirm(txid)
            self._committed.notify_all()

    @property
    def have_settled_all(self) -> bool:
        """True if every confirmed transaction is published."""
        return all(relay.has_settled_all for relay in self._relays.values())

    def close(self, wait_s: float) -> None:
        """End the publication under way, for so many seconds at most, say what stays unsent, and close the sinks."""
        if self._is_closing:
            return
        with self._committed:
            self._is_closing = True
            self._committed.notify_all()
        self._pool.shutdown(wait_s=wait_s)
        with suppress(StoreUnavailable):
            for line in self.read_unsent():
                _log.warning("%s; the next run sends them", line)
        self._close_sinks()

    def _close_sinks(self) -> None:
        """Close all sinks at the same time: each may wait for work under way, and the lease is not renewed any more."""
        sinks = [*self.sinks.values(), *self._sending_sinks]
        pool = DaemonPool(len(sinks), "closing")
        pool.run_concurrently([sink.close for sink in sinks])
        pool.shutdown()

    def read_unsent(self) -> list[str]:
        """Return a line for each sink with transactions that are committed and not published."""
        if self._lease is None or (self._relays and self.have_settled_all):
            return []
        progresses = self._store.sinks(self._lease.topology_id)
        return [f"{name}: {progress.unsent_summary}" for name, progress in progresses.items() if progress.waiting]

    @property
    def slowest(self) -> Relay:
        """The relay that has published least; only if there are sinks."""
        return min(self._relays.values(), key=lambda relay: relay.settled_txid)

    def _report(self, report_settled: Callable[[TxId], None]) -> None:
        with self._committed:
            txid = self.slowest.settled_txid
            if txid > self._reported_txid:
                self._reported_txid = txid
                report_settled(txid)

    def _serve(
        self, relay: Relay, report_settled: Callable[[TxId], None], fail: Callable[[BaseException], None]
    ) -> None:
        outage = Outage(f"sink {relay.sink_id!r}", self._config.outage_timeout_ms)
        while not self._is_closing:
            try:
                while relay.step() and not self._is_closing:
                    outage.end()
                    self._report(report_settled)
                outage.end()
                self._report(report_settled)
            except OperatingError as error:
                try:
                    outage.note(error)
                except OperatingError as lasting:
                    fail(lasting)
                    return
                self._wait(RETRY_S)
            except BaseException as error:
                fail(error)
                return
            else:
                self._wait(None, relay)

    def _wait(self, wait_s: float | None, relay: Relay | None = None) -> None:
        with self._committed:
            if not self._is_closing and (relay is None or relay.has_settled_all):
                self._committed.wait(wait_s)


class Outage:
    """Since when a sink fails, for `outage_timeout_ms` and for a log line a minute. `subject` is named in both."""

    def __init__(self, subject: str, timeout_ms: int | None) -> None:
        self._subject, self._timeout_ms = subject, timeout_ms
        self._since_s: float | None = None
        self._warned_s = 0.0

    def end(self) -> None:
        """Note that nothing fails any more."""
        self._since_s = None

    def note(self, error: OperatingError) -> None:
        """Note a failure. Raises `OperatingError` once they have lasted for longer than is allowed."""
        now_s = time.monotonic()
        if self._since_s is None:
            self._since_s, self._warned_s = now_s, -WARNED_EVERY_S
        if now_s - self._warned_s >= WARNED_EVERY_S:
            self._warned_s = now_s
            _log.warning("%s waits since %d s: %s", self._subject, now_s - self._since_s, error)
        if self._timeout_ms is not None and 1_000 * (now_s - self._since_s) >= self._timeout_ms:
            raise OperatingError(f"{self._subject} has been failing for too long: {error}") from error


def _monotonic_ms() -> int:
    return round(1_000 * time.monotonic())
