"""Every error of the framework, in one tree.

    TransactionalError
    ├── ConfigError                  you: wrong wiring, schema, option; raised when the topology is built or opened
    │   └── SchemaMismatch           a table or a bolt's output is not what was declared
    ├── FailedException              you: raised in a bolt, replays this batch
    ├── OperatingError               the environment: fails an attempt, which is retried
    │   ├── SourceUnavailable        a broker does not respond, a partition has no leader
    │   ├── BoltFailed               a bolt raised an exception; holds component and traceback
    │   ├── ReplayMismatch           a replay read different records from those recorded
    │   ├── TableConflict            another writer got in between; nothing was written
    │   ├── AttemptLost              executors, results or cached data of an attempt are gone
    │   │   ├── TuplesLost           tasks of an attempt have received less, or more, than was sent to them
    │   │   └── WorkerDied           a process has ended while it worked for an attempt
    │   ├── StoreUnavailable         the coordinator's store does not respond
    │   ├── SumOverflow              a sum is larger than its column can hold; nothing was written
    │   ├── TooManyCollected         more tuples belong together than may be kept; nothing was written
    │   ├── SchemaUnknown            a schema registry does not know the ids of records
    │   └── SinkUnavailable          the target of a sink does not respond; committed records wait
    ├── QueryFailed                  a question could not be answered; nothing else is affected
    └── FatalError                   stops the process, with its reason
        ├── Fenced                   another coordinator has taken over
        ├── TopologyInUse            another coordinator holds the lease
        ├── TopologyChanged          the topology is not the one whose progress is stored
        ├── StoreMismatch            store and tables do not belong together
        ├── StoreTooNew              the store was written by a newer version
        ├── BatchLost                a transactional spout can't replay what was recorded
        ├── CorruptRecord            something stored can't be read
        ├── RetriesExhausted         a transaction failed as often as is allowed
        ├── CommitStuck              a commit phase took longer than is allowed
        ├── RewindUnfinished         a rewind was begun, and has to be finished first
        ├── BeyondKept               what a rewind needs is no longer kept
        ├── StoreWentBack            the store has lost what it had confirmed
        ├── FileReplaced             the file of a store or a state is no longer the one that is open
        ├── NaiveTime                user code gave a timestamp without a time zone
        ├── SparkStopped             somebody has stopped the Spark that a run needs
        ├── RecordRefused            the target of a sink refuses a committed record
        ├── TableUnfit               a table can't be used as it is now, whoever tries again
        └── ProtocolError            a bug in the framework: an event that no phase allows

Each class has a `code`, which is the name of its section in `docs/errors.md`. The command line shows `code: message`
without a traceback, and ends with the class's `exit_code`.
"""

from __future__ import annotations

from contextlib import ContextDecorator
from types import TracebackType
from typing import ClassVar, Final

from transactional.model.letters import Exclusion
from transactional.model.plumbing.redaction import without_login
from transactional.model.plumbing.tracebacks import describe_error, shorten_traceback, text_in_cell, traceback_text

LOOK: Final = 1
"""The exit code of a process that ended with an error that stays until a person does something about it."""
TRY_AGAIN: Final = 75
"""The exit code of a process that ended with an error that may pass by itself: `EX_TEMPFAIL` of sysexits.h."""


class TransactionalError(Exception):
    """Base of all errors of this framework.

    Logins are removed from its text, because an error may quote what user code or a library raised. `at_fault` names
    the tuples (`Exclusion`s) whose execution raised the error, if known. `is_outage` is True if something that the
    batch needs is unavailable: such an attempt does not count against `attempts_max`. `tries_max` is the number of
    attempts at a transaction with this error after which the process stops, whatever `attempts_max` says; None: only
    `attempts_max` decides.
    """

    code: ClassVar[str] = "TX000"
    exit_code: ClassVar[int] = LOOK
    is_outage: bool = False
    tries_max: int | None = None

    def __init__(self, *args: object, at_fault: tuple[Exclusion, ...] = ()) -> None:
        super().__init__(*(without_login(argument) if isinstance(argument, str) else argument for argument in args))
        self.at_fault = at_fault

    def _render_traceback_(self) -> list[str]:
        """Return the text that IPython shows in place of its own traceback."""
        return [text_in_cell(self)]


class brief_errors(ContextDecorator):  # noqa: N801 - reads as a statement
    """Shortens the tracebacks of our errors, and of Ctrl-C, that leave a function which users call.

    Only the frames of the user's own code are shown, with `TRANSACTIONAL_DEBUG` in the environment all frames.
    """

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, TransactionalError | KeyboardInterrupt | TimeoutError):
            shorten_traceback(error)


def error_class_of(code: str) -> type[TransactionalError] | None:
    """Return the class of errors with this code, or None if there is none."""
    error_classes = (
        candidate
        for candidate in globals().values()
        if isinstance(candidate, type) and issubclass(candidate, TransactionalError)
    )
    return next((error for error in error_classes if error.code == code), None)


def fatal_error(code: str, reason: str) -> FatalError:
    """Return the `FatalError` with this code."""
    error = error_class_of(code)
    assert error is not None
    assert issubclass(error, FatalError)
    return error(reason)


class ConfigError(TransactionalError):
    """Something is wired or configured incorrectly; nothing has run yet."""

    code = "TX100"


class SchemaMismatch(ConfigError):
    """A table, or what a bolt emits, does not have the declared columns."""

    code = "TX101"


class FailedException(TransactionalError):
    """Raise it in a bolt to fail and replay this batch."""

    code = "TX200"


class OperatingError(TransactionalError):
    """Something outside the framework failed: the attempt fails and the transaction is retried."""

    code = "TX300"
    exit_code = TRY_AGAIN
    is_outage = True


class SourceUnavailable(OperatingError):
    """The source of a spout does not respond in time."""

    code = "TX301"


class BoltFailed(OperatingError):
    """A bolt raised an exception. The message names the component and ends with its traceback."""

    code = "TX302"
    is_outage = False

    @classmethod
    def raised_by(cls, call_name: str, error: BaseException, occasion: str = "") -> BoltFailed:
        """Return the error for an exception in user code: `call_name` raised it, and `occasion` is appended."""
        return cls(f"{call_name} raised {describe_error(error)}{occasion}\n{traceback_text(error)}")


class ReplayMismatch(OperatingError):
    """A replayed batch is incomplete, or holds different records from those recorded.

    If the source has lost the beginning of a range, `available_from` is the first offset that it still has, and the
    existing records of the range below `read_until` were delivered.
    """

    code = "TX303"
    is_outage = False

    def __init__(
        self,
        *args: object,
        at_fault: tuple[Exclusion, ...] = (),
        available_from: int | None = None,
        read_until: int = 0,
    ) -> None:
        super().__init__(*args, at_fault=at_fault)
        self.available_from, self.read_until = available_from, read_until


class TableConflict(OperatingError):
    """Another writer changed a state table between reading and writing; nothing was written."""

    code = "TX304"


class AttemptLost(OperatingError):
    """The results of an attempt are gone, or the attempt was cancelled or timed out."""

    code = "TX305"


class TuplesLost(AttemptLost):
    """The tasks of an attempt have received less than was sent to them, or more; nothing of it was written.

    Tuples that were lost by chance arrive at the next attempt. Tuples that are lost each time never will.
    """

    code = "TX309"
    is_outage = False
    tries_max = 10


class WorkerDied(AttemptLost):
    """A process has ended while it worked for an attempt: a tuple may crash it, or exhaust its memory.

    `how` says how it has ended. `bolt_input` is the last input of a bolt, pickled, if the task was watched. With
    `at_fault`, a process has died of each of these tuples alone, so that no further attempt has to fail on them.
    """

    code = "TX311"
    is_outage = False

    def __init__(
        self, *args: object, at_fault: tuple[Exclusion, ...] = (), how: str = "", bolt_input: bytes | None = None
    ) -> None:
        super().__init__(*args, at_fault=at_fault)
        self.how, self.bolt_input = how, bolt_input
        self.tries_max = 1 if at_fault else None


class StoreUnavailable(OperatingError):
    """The coordinator's store does not respond."""

    code = "TX306"


class SumOverflow(OperatingError):
    """A sum is larger than its column can hold; nothing was written. The message names state, key and values."""

    code = "TX307"
    is_outage = False


class TooManyCollected(OperatingError):
    """More tuples belong together than a `Collect` may keep; nothing was written. The message names state, key and
    limit."""

    code = "TX308"
    is_outage = False


class SchemaUnknown(OperatingError):
    """A schema registry does not know the ids of records, also after some time.

    With `at_fault`, the ids are recorded as unknown with the batch, and the next attempt treats their records as such.
    Without, there are too many of them, and the run ends.
    """

    code = "TX310"
    is_outage = False
    tries_max = 1


class SinkUnavailable(OperatingError):
    """The target of a sink does not respond, or has aborted a publication: nothing of that was published.

    The committed records wait in the outbox. With `is_fenced` the connection is unusable and has to be opened again.
    With `has_timed_out` the publication took longer than the target allows: fewer transactions are published together.
    """

    code = "TX312"

    def __init__(
        self,
        *args: object,
        at_fault: tuple[Exclusion, ...] = (),
        is_fenced: bool = False,
        has_timed_out: bool = False,
    ) -> None:
        super().__init__(*args, at_fault=at_fault)
        self.is_fenced, self.has_timed_out = is_fenced, has_timed_out


class QueryFailed(TransactionalError):
    """A question could not be answered: a step of the query failed on it, or the tables changed too quickly."""

    code = "TX500"


class FatalError(TransactionalError):
    """The process has to stop; what was committed stays right."""

    code = "TX400"


class Fenced(FatalError):
    """Another coordinator of this topology has taken over; this one may no longer change anything."""

    code = "TX401"
    exit_code = TRY_AGAIN


class TopologyInUse(FatalError):
    """Another coordinator of this topology id holds the lease: two at once are dangerous."""

    code = "TX402"
    exit_code = TRY_AGAIN


class TopologyChanged(FatalError):
    """The topology differs from the one whose progress the store holds in a way that would make counts wrong."""

    code = "TX403"


class StoreMismatch(FatalError):
    """The store and a state table disagree about what was committed."""

    code = "TX404"


class StoreTooNew(FatalError):
    """The store has the schema of a newer version of the framework, which this one does not read."""

    code = "TX405"


class BatchLost(FatalError):
    """A recorded batch can't be read again: its source, or a table of others that it reads, has lost the data."""

    code = "TX406"


class CorruptRecord(FatalError):
    """Stored data can't be read."""

    code = "TX407"


class RetriesExhausted(FatalError):
    """A transaction failed as often as is allowed."""

    code = "TX408"


class CommitStuck(FatalError):
    """A commit phase, or the rest of an aborted attempt, ran longer than `commit_timeout_ms`: this process ends."""

    code = "TX409"
    exit_code = TRY_AGAIN


class RewindUnfinished(FatalError):
    """A rewind of this topology was begun and not finished: nothing else may start before it is."""

    code = "TX410"


class BeyondKept(FatalError):
    """A rewind can't reach the transaction: what it needs is no longer kept. Nothing was changed."""

    code = "TX411"


class StoreWentBack(FatalError):
    """The store has lost writes that it had confirmed, as after a failover to a copy that was behind: this process
    ends, and the next one compares store and tables as it starts."""

    code = "TX412"
    exit_code = TRY_AGAIN


class FileReplaced(FatalError):
    """The SQLite file of a store or a state was deleted, moved or replaced while this process wrote to it."""

    code = "TX413"


class NaiveTime(FatalError):
    """User code gave a timestamp without a time zone, and which instant it means is unknown. The message names the
    component and the field. Such a tuple is never a dead letter: the program is wrong, not the tuple."""

    code = "TX414"


class SparkStopped(FatalError):
    """The Spark of this process was stopped, or its JVM has ended, while a topology ran on it."""

    code = "TX415"
    exit_code = TRY_AGAIN


class TableUnfit(FatalError, SchemaMismatch):
    """A table can't be used as it is now, and another attempt finds it as it is: a property or a feature that somebody
    has set, a column that was added, or is of another type."""

    code = "TX416"


class RecordRefused(FatalError):
    """The target of a sink refuses a record of a committed transaction, however often it is sent; or the records of a
    transaction are more than the outbox takes. The message names sink, transaction and record."""

    code = "TX417"


class ProtocolError(FatalError):
    """A bug in the framework: an event arrived that its attempt's phase does not allow."""

    code = "TX900"
