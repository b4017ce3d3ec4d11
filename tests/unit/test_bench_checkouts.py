"""The works of `python -m bench checkouts`, by this checkout alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench import checkout_work, checkouts


@pytest.mark.parametrize("work", ["20-into-100", "deletes", "expiry", "sqlite"])
def test_a_work_writes_its_table_and_prints_its_times(
    work: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(checkout_work.TABLES, work, replace(checkout_work.TABLES[work], transactions=1))
    checkout_work.main(work, str(tmp_path), "counts")
    seconds = json.loads(capsys.readouterr().out)
    assert seconds["wall_s"] > 0
    assert seconds["cpu_s"] > 0


def test_ratios_are_of_old_to_new() -> None:
    pairs = [
        ({"cpu_s": 2.0, "wall_s": 3.0}, {"cpu_s": 1.0, "wall_s": 4.0}),
        ({"cpu_s": 4.0, "wall_s": 4.0}, {"cpu_s": 1.0, "wall_s": 1.0}),
    ]
    assert checkouts.ratio(pairs, "cpu_s") == "2.00 … 3.00 … 4.00"
    assert checkouts.ratio(pairs, "wall_s") == "0.75 … 2.38 … 4.00"
