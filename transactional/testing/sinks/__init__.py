"""The contract of sinks, as cases with which users test their own sinks (`check_sink`)."""

from __future__ import annotations

from transactional.testing.sinks import encoding, publishing, rewinding, taking_over
from transactional.testing.sinks.trial import REGISTER

CASES = REGISTER.in_order((encoding, publishing, taking_over, rewinding))
"""The cases by name, in the order in which they are tried: simple ones first."""
