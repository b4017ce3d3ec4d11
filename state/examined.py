"""What the doctor learns from a state's table in a database: its owner, its last writer, and its last rewind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from transactional.core.ports.examining import Diagnosis, Problem, in_words
from transactional.model.attempt import AttemptId, TxId
from transactional.model.errors import ProtocolError, SchemaMismatch, StoreMismatch


class ExaminedTable:
    """A state's table at one moment. It has no log, so only a checker can see what other writers have done to its rows.

    `refusal` is the error with which the state would refuse the table, `rewound_to` the transaction of its last rewind,
    `store_id` the id of the store that it was created with.
    """

    has_full_history, torn = False, None

    def __init__(
        self,
        location: str,
        component_id: str,
        version: AttemptId | None = None,
        *,
        refusal: SchemaMismatch | StoreMismatch | None = None,
        rewound_to: TxId | None = None,
        store_id: str | None = None,
    ) -> None:
        self.where, self._component = in_words(component_id, location), component_id
        self.version, self.store_id = version, store_id
        self._refusal, self._rewound_to = refusal, rewound_to

    @property
    def versions(self) -> Sequence[AttemptId]:
        """The attempt of the last write, which is the only one that the table records."""
        return [] if self.version is None else [self.version]

    def diagnoses(self) -> Iterator[Diagnosis]:
        """Yield that the table belongs to something else, with which every run is refused, and that it was rewound."""
        if self._refusal is not None:
            yield Diagnosis(Problem.TABLE_FOREIGN, self.where, str(self._refusal), "as it says", self._component)
        if self._rewound_to is not None:
            event = f"a rewind has taken it back to transaction {self._rewound_to}, the last time that there was one"
            remedy = "nothing: it went back with its topology; `transactional txns` shows what was taken back"
            yield Diagnosis(Problem.TABLE_REWOUND, self.where, event, remedy, self._component, is_harmless=True)

    def repair(self, diagnosis: Diagnosis) -> str:
        """Raise `ProtocolError`: earlier rows are unknown, so nothing can be repaired."""
        raise ProtocolError(f"{self.where}: nothing can be done here about {diagnosis.problem}")
