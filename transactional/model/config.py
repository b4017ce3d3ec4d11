"""`TopologyConfig`: every option of a running topology, with its default, its unit and its constraints.

An option is checked by its name and its value, wherever it comes from, so that a mistake is one line with a suggestion.
`config_sources` reads the sources of options: a file, the environment, code, and the command line. The names of options
are public: they are in files and variables of users.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Final

from transactional.model.errors import ConfigError
from transactional.model.plumbing.redaction import without_login
from transactional.model.schema import did_you_mean

_NOT_ACKED: Final = "the argument ackers of transactional.reliable.TopologyBuilder, and not needed with exactly once"
_NO_QUEUES: Final = "not needed: no queue stands between tasks, and batch_records_max of the spout limits a batch"
_BY_SPARK: Final = "Spark's affair: --master, and Spark's own options"
_IN_ARROW: Final = "not needed: tuples travel in Arrow's format, by the schema of their stream"
_NO_PAUSE: Final = "not needed: a source without data is polled again after 50 ms"
_IN_WINDOWS: Final = "an argument of set_windowed_bolt or of its window: tumbling(), sliding(), count()"
STORM_NAMES: Final[Mapping[str, str]] = {
    "topology.max.spout.pending": "max_spout_pending",
    "topology.message.timeout.secs": "attempt_timeout_ms",
    "topology.enable.message.timeouts": "attempt_timeout_ms, which is always on",
    "topology.max.task.parallelism": "parallelism of set_bolt",
    "topology.tasks": "parallelism of set_bolt",
    "topology.transactional.id": "the id given to TransactionalTopologyBuilder",
    "topology.name": "the option --name of `transactional run`",
    "topology.debug": "the options --log and --journal of `transactional run`",
    "topology.eventlogger.executors": "the option --journal of `transactional run`",
    "topology.metrics.consumer.register": "the option --metrics of `transactional run`",
    "topology.stats.sample.rate": "not needed: every transaction is measured",
    "topology.state.provider": "state_provider",
    "topology.state.provider.config": "the URL in state_provider",
    "topology.state.checkpoint.interval.ms": "not needed: every transaction is a checkpoint",
    "topology.spout.max.batch.size": "batch_records_max of the spout",
    "topology.trident.batch.emit.interval.millis": _NO_PAUSE,
    "topology.trident.windowing.cache.tuple.limit": "not needed: open windows are rows of a state",
    "topology.tick.tuple.freq.secs": "window_tick_ms, for windows",
    "topology.ackers": _NOT_ACKED,
    "topology.acker.executors": _NOT_ACKED,
    **dict.fromkeys(("topology.workers", "topology.worker.childopts", "topology.worker.max.heap.size.mb"), _BY_SPARK),
    **dict.fromkeys(("topology.component.resources.onheap.memory.mb", "topology.classpath"), _BY_SPARK),
    **dict.fromkeys(("topology.backpressure.enable", "topology.executor.receive.buffer.size"), _NO_QUEUES),
    "topology.transfer.buffer.size": _NO_QUEUES,
    **dict.fromkeys(("topology.spout.wait.strategy", "topology.sleep.spout.wait.strategy.time.ms"), _NO_PAUSE),
    "topology.metrics.reporters": "the option --metrics of `transactional run`",
    "topology.bolts.message.id.field.name": "not needed: each window is processed exactly once",
    "topology.bolts.window.partition.max.events": "not needed: open windows are rows of a state",
    "topology.environment": "the environment of the process that runs the topology",
    **dict.fromkeys(("storm.zookeeper.servers", "nimbus.seeds"), "the store's URL"),
    "supervisor.slots.ports": _BY_SPARK,
    **dict.fromkeys(("drpc.servers", "drpc.port"), "the address of `transactional serve`"),
    "ui.port": "the option --ui of `transactional run`, or `transactional ui`",
    "topology.kryo.register": _IN_ARROW,
    "topology.fall.back.on.java.serialization": _IN_ARROW,
    "topology.bolts.window.length.count": _IN_WINDOWS,
    "topology.bolts.window.length.duration.ms": _IN_WINDOWS,
    "topology.bolts.window.sliding.interval.count": _IN_WINDOWS,
    "topology.bolts.window.sliding.interval.duration.ms": _IN_WINDOWS,
    "topology.bolts.tuple.timestamp.field.name": _IN_WINDOWS,
    "topology.bolts.tuple.timestamp.max.lag.ms": "max_delay of the spout",
    "topology.bolts.watermark.event.interval.ms": "not needed: each transaction has its watermark",
    "topology.bolts.late.tuple.stream": "the argument late of set_windowed_bolt",
    "transactional.zookeeper.servers": "the store's URL",
    "transactional.zookeeper.root": "the store's URL",
    "transactional.zookeeper.port": "the store's URL",
    "drpc.request.timeout.secs": "the option --timeout-s of `transactional serve`",
}
"""Storm's options, and their equivalents here."""

UNITS: Final = ("ms", "days")
MAY_BE_NONE: Final = (
    *("attempts_max", "message_retries_max", "outage_timeout_ms"),
    *("target_latency_ms", "state_provider", "window_tick_ms", "outbox_folder"),
)
MAY_BE_ZERO: Final = ("message_retries_max",)
CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "durability": ("disk", "process"),
    "commit_steps": ("auto", "driver", "jobs"),
    "processing": ("spark", "auto", "workers"),
}
"""The options that take one of a few words, with these words."""
TEXTS: Final = ("state_provider", "outbox_folder")
"""The options that take any text."""
SWITCHES: Final = ("stop_when_drained", "close_windows")
NUMBER_MAX: Final = 10**9
TIME_MAX_MS: Final = 10**12
"""The largest value of an option with a time. Waits and computations can handle it."""
_PAUSES_DOUBLED: Final = 8
"""The maximum number of times that the pause between two attempts is doubled: from 100 ms to 25.6 s."""
_MILLISECONDS: Final = {"ms": 1, "s": 1_000, "sec": 1_000, "secs": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000}
_SWITCH_WORDS: Final = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyConfig:
    """Options of a running topology. Times are in milliseconds.

    Raises `ConfigError` if a value is out of range or contradicts another.
    """

    max_spout_pending: int = 1
    """Maximum number of transactions in flight (Storm's `topology.max.spout.pending`, whose default is 1 as well)."""

    attempt_timeout_ms: int = 30_000
    """Planning, or a processing phase, without progress for this long fails its attempt (Storm's
    `topology.message.timeout.secs`)."""

    commit_timeout_ms: int = 300_000
    """A commit phase that takes longer ends the process: it can't be cancelled, only fenced by a restart. So does an
    aborted attempt of which something is still running after this time."""

    retry_pause_ms: int = 100
    """Pause before the second attempt; doubled for each further one, up to 256 times this pause."""

    attempts_max: int | None = None
    """Attempts after which the process stops with the last error; None: retried for as long as it takes. Attempts that
    fail because a source, a table's storage, the store or an executor is unavailable are not counted; those of which a
    process has died are. Ten attempts in which tuples were lost stop it, too."""

    message_retries_max: int | None = None
    """The number of times that an at-least-once topology processes a failed message again, by itself, before it becomes
    a dead letter, or is lost without a table for dead letters; None: until it succeeds."""

    outage_timeout_ms: int | None = None
    """If something that a transaction needs (a source, a table's storage, a sink's target, the store, an executor) has
    been unavailable for this long, the process stops with the last error; None: it retries for as long as it takes."""

    dead_letters_max: int = 1_000
    """How many different tuples one transaction may set aside, if dead letters are set; with more it stops."""

    target_latency_ms: int | None = None
    """How long a transaction should take, from planning to commit: batches are sized from measurements, within the
    spout's limits. None: only the spout's limits apply."""

    window_tick_ms: int | None = None
    """The shortest interval at which the clock causes a transaction without a record, in a topology with windows, when
    there is nothing to read. None: once a second, and only while such a transaction may close a window: by the
    transactions' own time when one has ended, by event time if each of its streams has `idle_after`. A number: by event
    time also without `idle_after`, and without an end. Windows that the watermark has already passed close at once,
    whatever this is. With `stop_when_drained` the run waits for no window."""

    stop_when_drained: bool = False
    """Stop once the source has no more data, everything in flight is committed, and every window that the watermark has
    passed is closed."""

    close_windows: bool = False
    """Close all windows by event time before a run with `stop_when_drained` stops, as if a later event had come. Tuples
    that come later for these windows are late."""

    lease_ms: int = 10_000
    """How long a coordinator's lease on its topology is valid without being renewed."""

    keep_attempts_days: int = 30
    """Committed attempts, with the ranges they read, are kept this long for `txns` and for repair."""

    keep_attempts_max: int = 1_000_000
    """Maximum number of attempts kept, regardless of age. Each transaction commit deletes two of the oldest surplus
    ones."""

    state_provider: str | None = None
    """Where stateful bolts that are given no state keep theirs: a URL such as `sqlite:///states.db`,
    `delta:tables/{component}` or `memory`. Read when the topology is built."""

    commit_steps: str = "auto"
    """Where the steps of a commit phase run. `auto`: a bolt whose grouping puts each key of its state into one task
    runs as a Spark job in a transaction in which that is quicker, by what its steps have taken so far, or that is too
    large for the driver. `driver`: never; `jobs`: always, where possible."""

    processing: str = "spark"
    """Where processing phases run. `spark`: on Spark, as does whatever else needs it. `workers`: in processes beside
    the driver, without Spark. `auto`: in workers, and on Spark in a transaction for which that is quicker, by what
    those before it have taken; Spark is started when it is first needed. A topology that can't do without Spark stays
    there, and is refused with `workers`."""

    durability: str = "disk"
    """The failure that a committed transaction survives. `disk`: a power failure; files of tables on a disk are synced
    before the transaction is committed. `process`: the death of the process, while the operating system keeps running.
    Databases, object stores and the coordinator's own store handle this themselves."""

    sink_bytes_max: int = 64 * 2**20
    """While transactions in flight have records of so many bytes for sinks, which wait in memory, no new transaction is
    issued. A single transaction may have more."""

    sink_pending_max: int = 1_000
    """While so many committed transactions wait to be published by a sink, no further transaction is committed."""

    sink_pending_bytes_max: int = 256 * 2**20
    """While committed transactions with compressed records of so many bytes wait to be published, no further
    transaction is committed."""

    outbox_folder: str | None = None
    """Where a topology with sinks has payloads above 256 KiB until they are published: a folder that every process of
    the topology sees, on a disk that survives what the store survives. None: the folder `outbox` beside a store in
    SQLite; with a store in PostgreSQL larger ones than 4 MiB are then refused."""

    idle_pause_ms: int = 50
    tick_ms: int = 20

    def __post_init__(self) -> None:
        for name in FIELDS:
            check_option(name, getattr(self, name))
        self._check_relations()

    def _check_relations(self) -> None:
        if self.close_windows and not self.stop_when_drained:
            raise ConfigError(
                "close_windows closes windows once the source is drained, and this run continues then: set "
                "stop_when_drained as well (--until-drained)"
            )
        if self.lease_ms < 10 * self.tick_ms:
            raise ConfigError(f"lease_ms must be at least {10 * self.tick_ms}, got {self.lease_ms}")
        if self.target_latency_ms is not None and self.target_latency_ms >= self.attempt_timeout_ms:
            raise ConfigError(
                f"target_latency_ms ({self.target_latency_ms}) must be below attempt_timeout_ms "
                f"({self.attempt_timeout_ms}), after which an attempt without progress fails"
            )

    def retry_pause_after(self, failures: int) -> int:
        """Return the pause in milliseconds after this number of failed attempts in a row, which is at least 1."""
        return min(self.retry_pause_ms << min(failures - 1, _PAUSES_DOUBLED), TIME_MAX_MS)


INTERNAL: Final = ("idle_pause_ms", "tick_ms")
"""Fields that only code sets, for its tests: the pause before a source without data is polled again, and the interval
at which the coordinator receives the current time."""
FIELDS: Final = tuple(field.name for field in fields(TopologyConfig))
OPTIONS: Final = tuple(name for name in FIELDS if name not in INTERNAL)
"""The names of all options, in the order of `TopologyConfig`."""


def option_unit(name: str) -> str:
    """Return the unit that an option's name ends with, or "" if it has none."""
    last = name.rpartition("_")[2]
    return last if last in UNITS else ""


def redacted_options(config: TopologyConfig) -> dict[str, Any]:
    """Return all options by name, without the logins in them, to be stored or displayed."""
    return {name: redacted_value(name, getattr(config, name)) for name in OPTIONS}


def redacted_value(name: str, value: Any) -> Any:
    """Return the value of an option without the login in it."""
    return without_login(value) if name in TEXTS and value is not None else value


def check_name(name: str) -> None:
    """Raise `ConfigError`, with the name that was probably meant, unless an option of this name exists."""
    if name in OPTIONS:
        return
    if name in STORM_NAMES:
        raise ConfigError(f"there is no option {name!r}: Storm's option of that name is {STORM_NAMES[name]} here")
    raise ConfigError(f"there is no option {name!r}{option_hint(name, OPTIONS)}; there are: {', '.join(OPTIONS)}")


def option_hint(wrong: str, right: Iterable[str]) -> str:
    """Return ` — did you mean 'x'?` for the option that was misspelled, or nothing if none is close enough.

    Words of a name are compared one by one, and only the last may be missing: `tick_ms` is no `window_tick_ms`.
    """
    return did_you_mean(wrong, [name for name in right if _is_misspelled(wrong.lower(), name.lower())])


def _is_misspelled(wrong: str, right: str) -> bool:
    if re.sub(r"\W|_", "", wrong) == right.replace("_", ""):
        return True
    words, right_words = wrong.split("_"), right.split("_")
    has_all = len(right_words) - len(words) in (0, 1)
    return has_all and all(get_close_matches(word, [right]) for word, right in zip(words, right_words, strict=False))


def check_options(options: Mapping[str, object]) -> dict[str, Any]:
    """Return a copy of the options that code sets. Raises `ConfigError` for an unknown name or an invalid value."""
    for name, value in options.items():
        if name not in INTERNAL:
            check_name(name)
        check_option(name, value)
    return dict(options)


def parse_option(name: str, text: str) -> int | bool | str | None:
    """Parse the value of an option from text. Raises `ConfigError` for an unknown name or an invalid value."""
    check_name(name)
    value: int | bool | str | None = text
    if name in MAY_BE_NONE and text.lower() == "none":
        value = None
    elif name in SWITCHES:
        value = {"true": True, "false": False}.get(text.lower(), text)
    elif name in CHOICES:
        value = text.lower()
    elif name in TEXTS:
        value = text
    elif len(text) <= 20 and re.fullmatch(r"-?[0-9]+(_[0-9]+)*", text):
        value = int(text)
    check_option(name, value)
    return value


def check_option(name: str, value: object) -> None:
    """Raise `ConfigError`, with what was probably meant, unless the option accepts this value."""
    if name in SWITCHES:
        if not isinstance(value, bool):
            raise ConfigError(f"{name} takes True or False, got {value!r}{_suggest_switch(value)}")
    elif name in CHOICES:
        if value not in CHOICES[name]:
            suggestion = did_you_mean(str(value).lower(), CHOICES[name])
            raise ConfigError(f"{name} takes {' or '.join(map(repr, CHOICES[name]))}, got {value!r}{suggestion}")
    elif name in TEXTS:
        if value is not None and not (isinstance(value, str) and value.strip()):
            raise ConfigError(f"{name} takes a text, got {value!r}")
    elif not (name in MAY_BE_NONE and value is None):
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{name} takes a whole number, got {value!r}{_suggest_number(name, value)}")
        if value < (minimum := 0 if name in MAY_BE_ZERO else 1):
            raise ConfigError(f"{name} must be at least {minimum}, got {value}")
        maximum = TIME_MAX_MS if option_unit(name) == "ms" else NUMBER_MAX
        if value > maximum:
            raise ConfigError(f"{name} must be at most {maximum}, got a larger number")


def _suggest_switch(value: object) -> str:
    suggested = _SWITCH_WORDS.get(str(value).lower())
    return "" if suggested is None else f" — did you mean {str(suggested).lower()}?"


def _suggest_number(name: str, value: object) -> str:
    """Return a hint with the number that texts such as `'10s'` and `'3'` stand for, or "" for any other value."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(value).lower())
    if match is None:
        return ""
    factor = _MILLISECONDS.get(match[2], 0) if option_unit(name) == "ms" and match[2] else int(not match[2])
    suggested = float(match[1]) * factor
    return f" — did you mean {suggested:.0f}?" if 1 <= suggested <= TIME_MAX_MS and suggested == int(suggested) else ""
