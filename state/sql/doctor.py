"""The doctor's examination of a state's SQL table: whether it is the one that the state has created, and its writer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import Connection

from state.sql.registry import Registration
from transactional.attempt import AttemptId
from transactional.errors import ProtocolError, SchemaMismatch, StoreMismatch
from transactional.ports.examining import Diagnosis, Problem, in_words


class ExaminedSql:
    """A state's table at one moment. It has no log: only a checker may see what other writers have done to rows."""

    tells_all = False

    def __init__(self, place: str, component_id: str) -> None:
        self.where, self._component = in_words(component_id, place), component_id
        self._wrong = ""
        self._version: AttemptId | None = None

    def look(self, registration: Registration, connection: Connection) -> None:
        """Examine the table, in a database transaction that only reads."""
        try:
            self._version = registration.check(connection)
        except (SchemaMismatch, StoreMismatch) as error:
            self._wrong = str(error)

    @property
    def version(self) -> AttemptId | None:
        """The attempt that has written the table last."""
        return self._version

    @property
    def versions(self) -> Sequence[AttemptId]:
        """Only the last one is known."""
        return [] if self._version is None else [self._version]

    def diagnoses(self) -> Iterator[Diagnosis]:
        """That the table is not the state's: then every start is refused, too."""
        if self._wrong:
            yield Diagnosis(Problem.TABLE_FOREIGN, self.where, self._wrong, "as it says", self._component)

    def repair(self, diagnosis: Diagnosis) -> str:
        """Nothing can be repaired: what was there before is unknown."""
        raise ProtocolError(f"{self.where}: nothing can be done here about {diagnosis.problem}")
