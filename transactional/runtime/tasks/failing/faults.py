"""Collects the tuples on which the bolts of one task have failed, so that one failed attempt names them all.

A task continues after a tuple on which its bolt has failed, and fails at its end; nothing is finished then. A failure
that can't be attributed to a tuple ends the task at once, and then no tuple is at fault: an outage may be the cause.
"""

from __future__ import annotations

import hashlib

from transactional.core.ports.dead_letters import values_to_json
from transactional.core.ports.stream_names import normalize_origin
from transactional.model.errors import FatalError, OperatingError
from transactional.model.groupings import DEFAULT_STREAM
from transactional.model.letters import Exclusion
from transactional.model.plumbing.redaction import without_login
from transactional.model.user_code.failures import TaskFailed
from transactional.model.user_code.tuples import Tuple, raw_values

NAMED_MAX = 1_001
"""Number of tuples after which a task stops looking: one above the default of `dead_letters_max`."""

_SHOWN_CHARACTERS, _ERROR_CHARACTERS = 300, 4_000
_KAFKA_FIELDS = ("topic", "partition", "offset")


class Faults:
    """The tuples that the bolts of one task have failed on so far. `spout` is the id of the topology's spout."""

    def __init__(self, spout: str = "") -> None:
        self.spout = spout
        self.reading = ""
        """The partition and offsets that the task is reading, if its tuples come from the source."""
        self._named: dict[tuple[str, str], Exclusion] = {}
        self._first: TaskFailed | None = None

    def __bool__(self) -> bool:
        return self._first is not None

    def is_named(self, component: str, row: Tuple) -> bool:
        """Return whether an equal tuple was named before."""
        return (component, fingerprint(row, self.spout)) in self._named

    def name(self, failed: TaskFailed, row: Tuple) -> None:
        """Attribute a failure to a tuple. Raises the first failure once `NAMED_MAX` tuples are named."""
        source = self._source_of(row)
        failed.location = source  # the letter has its own columns for the tuple
        exclusion = Exclusion(failed.component, fingerprint(row, self.spout), _shortened(without_login(str(failed))))
        failed.location = _described(row) + source
        self._first = self._first or failed
        self._named.setdefault(exclusion.key, exclusion)
        if len(self._named) >= NAMED_MAX:
            self.fail()

    @property
    def at_fault(self) -> tuple[Exclusion, ...]:
        """The tuples that were named, sorted."""
        return tuple(sorted(self._named.values()))

    def fail(self) -> None:
        """Raise the first failure with all tuples that were named, if there is one."""
        if self._first is not None:
            self._first.at_fault = self.at_fault
            raise self._first

    def _source_of(self, row: Tuple) -> str:
        if set(_KAFKA_FIELDS) <= set(row.fields):
            return f", at offset {row['offset']} of partition {row['partition']} of topic {row['topic']!r}"
        return f", in {self.reading}" if self.reading else ""


def _described(row: Tuple) -> str:
    values = letter_text(row)
    shown = values if len(values) <= _SHOWN_CHARACTERS else values[:_SHOWN_CHARACTERS] + "…"
    stream = "" if row.stream == DEFAULT_STREAM else f", stream {row.stream!r}"
    return f", on {shown} from {row.source!r}{stream}"


def can_be_of_a_tuple(failed: TaskFailed, component: str) -> bool:
    """Return whether a single tuple may be at fault: the bolt's own code has failed, not a following bolt, the
    combination of many tuples, or an external system."""
    is_own = failed.component == component and not failed.is_of_many
    return is_own and not isinstance(failed.__cause__, OperatingError | FatalError)


def letter_text(row: Tuple) -> str:
    """Return the values of a tuple as a dead letter stores them."""
    return values_to_json(dict(zip(row.fields, raw_values(row), strict=True)))


def fingerprint(row: Tuple, spout: str = "") -> str:
    """Return a hash that is equal for equal tuples of one stream, in every process.

    With the spout's id it does not depend on the order in which the streams of the spout are declared.
    """
    origin = normalize_origin(row.source, row.stream, spout)
    return hashlib.sha256(repr((*origin, raw_values(row))).encode()).hexdigest()[:32]


def _shortened(error: str) -> str:
    half = _ERROR_CHARACTERS // 2
    return error if len(error) <= _ERROR_CHARACTERS else f"{error[:half]}\n…\n{error[-half:]}"
