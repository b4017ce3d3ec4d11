"""Every transcript of this folder, told to a fresh coordinator, gives the answers that are written in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.scenario import Scenario

TRANSCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path, request: pytest.FixtureRequest) -> None:
    written = path.read_text(encoding="utf-8")
    actual = Scenario().run(written)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(actual, encoding="utf-8")
        return
    assert actual.splitlines() == written.splitlines(), "read what changed with `pytest tests/scenarios --rewrite`"


def test_the_first_transcript_is_storms() -> None:
    assert TRANSCRIPTS[0].stem == "001_storm_test_coordinator"


def test_a_wrong_answer_is_seen() -> None:
    right = "start\n----\nPlanBatch 1:1 after (the beginning)\n"
    assert Scenario().run("start\n----\n").rstrip("\n") == right.rstrip("\n")
    assert Scenario().run(right.replace("1:1", "1:2")).rstrip("\n") == right.rstrip("\n")


@pytest.mark.parametrize("command", ["unheard of", "dance", "wait", "planned"])
def test_a_command_that_is_none_is_refused(command: str) -> None:
    with pytest.raises(ValueError, match=r"not a command|not enough values"):
        Scenario().run(f"{command}\n----\n")
