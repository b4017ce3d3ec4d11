"""The contract of spouts, as cases with which users test their own spouts (`check_spout`)."""

from __future__ import annotations

from transactional.testing.spouts import lifecycle, planning, replays
from transactional.testing.spouts.trial import REGISTER

CASES = REGISTER.in_order((planning, replays, lifecycle))
"""The cases by name, in the order in which they are tried: simple ones first."""
