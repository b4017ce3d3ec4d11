"""Floors of attempts whose batch is not known: they are known by the one before alone."""

from __future__ import annotations

import pytest

from verifier.evidence.findings import Findings, Kind
from verifier.floors import Floors, check_floor


@pytest.mark.parametrize(("floor", "is_wrong"), [(None, True), (4, True), (5, False), (6, False)])
def test_a_floor_that_goes_back_or_is_lost_is_reported(floor: int | None, *, is_wrong: bool) -> None:
    findings = Findings()
    check_floor("here", Floors(2, floor, before=5), None, None, findings)
    assert findings.report().counts == ({Kind.BROKEN_ROW: 1} if is_wrong else {})


def test_none_is_needed_where_there_was_none() -> None:
    findings = Findings()
    check_floor("here", Floors(2, None, before=None), None, None, findings)
    assert findings.report().counts == {}
