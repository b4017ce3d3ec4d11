"""The contract of states, as cases that users try their own states with."""

from __future__ import annotations

from transactional.testing.states import fencing, going, histories, reading, replays, transactions, values
from transactional.testing.states.trial import DECLARED

_MODULES = (transactions, replays, fencing, values, going, reading, histories)
CASES = {name: case for module in _MODULES for name, case in DECLARED.items() if case.module == module.__name__}
"""All cases by name, the plain ones first."""
