"""The contract of states, as cases with which users test their own states (`check_state`)."""

from __future__ import annotations

from transactional.testing.states import fencing, histories, reading, removed_rows, replays, transactions, values
from transactional.testing.states.trial import REGISTER

CASES = REGISTER.in_order((transactions, replays, fencing, values, removed_rows, reading, histories))
"""The cases by name, in the order in which they are tried: simple ones first."""
