"""The doctor's examination of a state's table in a database: whether it is the one that the state has created, who has
written it last, and whether it was taken back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from transactional.core.ports.examining import Diagnosis, Problem, in_words
from transactional.model.attempt import AttemptId, TxId
from transactional.model.errors import ProtocolError, SchemaMismatch, StoreMismatch


class ExaminedTable:
    """A state's table at one moment. It has no log: only a checker may see what other writers have done to rows.

    `refusal` says why the state would refuse it; `rewound_to` is where a rewind has taken it last; `store_id` is the
    one that it was created with.
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
        """Only the last one is known."""
        return [] if self.version is None else [self.version]

    def diagnoses(self) -> Iterator[Diagnosis]:
        """That the table is not the state's: then every start is refused, too; and that it was taken back."""
        if self._refusal is not None:
            yield Diagnosis(Problem.TABLE_FOREIGN, self.where, str(self._refusal), "as it says", self._component)
        if self._rewound_to is not None:
            what = f"a rewind has taken it back to transaction {self._rewound_to}, the last time that there was one"
            remedy = "nothing: it went back with its topology; `transactional txns` shows what was taken back"
            yield Diagnosis(Problem.TABLE_REWOUND, self.where, what, remedy, self._component, is_harmless=True)

    def repair(self, diagnosis: Diagnosis) -> str:
        """Nothing can be repaired: what was there before is unknown."""
        raise ProtocolError(f"{self.where}: nothing can be done here about {diagnosis.problem}")
