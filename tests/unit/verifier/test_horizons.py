"""Expiry horizons of attempts whose batch is not known: they are known by the one before alone."""

from __future__ import annotations

import pytest

from verifier.evidence.findings import Findings, Kind
from verifier.horizons import ExpiryHorizons, check_horizon


@pytest.mark.parametrize(("horizon", "is_wrong"), [(None, True), (4, True), (5, False), (6, False)])
def test_a_horizon_that_goes_back_or_is_lost_is_reported(horizon: int | None, *, is_wrong: bool) -> None:
    findings = Findings()
    check_horizon("here", ExpiryHorizons(2, horizon, previous=5), None, None, findings)
    assert findings.report().counts == ({Kind.BROKEN_ROW: 1} if is_wrong else {})


def test_none_is_needed_where_there_was_none() -> None:
    findings = Findings()
    check_horizon("here", ExpiryHorizons(2, None, previous=None), None, None, findings)
    assert findings.report().counts == {}
