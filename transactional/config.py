"""`TopologyConfig`: every option of a running topology, with its default, its unit and what must hold of it."""

from __future__ import annotations

from dataclasses import dataclass, fields

from transactional.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyConfig:
    """Options of a running topology. Times are in milliseconds.

    Raises `ConfigError` when a value is out of its limits or contradicts another.
    """

    max_spout_pending: int = 1
    """Transactions in flight at once, at most (Storm's `topology.max.spout.pending`, whose default is 1 as well)."""

    attempt_timeout_ms: int = 30_000
    """Planning, or a processing phase, without progress for so long fails its attempt (Storm's
    `topology.message.timeout.secs`)."""

    commit_timeout_ms: int = 300_000
    """A commit phase that takes longer ends the process: it can't be cancelled, only fenced by a restart. So does a
    given-up attempt of which something still runs after so long."""

    retry_pause_ms: int = 100
    """Pause before the second attempt; doubled with each further one."""

    retry_pause_max_ms: int = 30_000
    """The longest pause between two attempts."""

    attempts_max: int | None = None
    """Attempts after which the process stops with the last error; None: retried for as long as it takes."""

    idle_pause_ms: int = 50
    """Pause before a source that had nothing is asked again."""

    stop_when_drained: bool = False
    """Finish once the source has nothing more and everything in flight is committed."""

    lease_ms: int = 10_000
    """How long a coordinator's lease on its topology holds without being renewed."""

    tick_ms: int = 20
    """How often the coordinator is told the time."""

    keep_attempts_days: int = 30
    """Committed attempts, with the ranges they read, are kept so long for `txns` and for repair."""

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self)):
            value = getattr(self, name)
            _check_option(name, value)
        self._check_relations()

    def _check_relations(self) -> None:
        if self.retry_pause_ms > self.retry_pause_max_ms:
            raise ConfigError(
                f"retry_pause_ms ({self.retry_pause_ms}) must not exceed retry_pause_max_ms ({self.retry_pause_max_ms})"
            )
        if self.lease_ms < 10 * self.tick_ms:
            raise ConfigError(f"lease_ms ({self.lease_ms}) must be at least ten times tick_ms ({self.tick_ms})")

    def retry_pause_after(self, failures: int) -> int:
        """Milliseconds to wait after the given number of failed attempts in a row, at least 1."""
        doubled: int = self.retry_pause_ms << min(failures - 1, 30)
        return min(doubled, self.retry_pause_max_ms)


def _check_option(name: str, value: object) -> None:
    if name == "stop_when_drained":
        if not isinstance(value, bool):
            raise ConfigError(f"{name} takes True or False, got {value!r}")
    elif not (name == "attempts_max" and value is None):
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{name} takes a whole number, got {value!r}")
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")
