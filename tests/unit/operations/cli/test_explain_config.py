"""`transactional config explain`, and that a run takes what it shows."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.command_line import RUN, Command
from transactional.operations.loading import open_for_reading
from transactional.runtime.engine.history.journal import RunStarted, read_journal


def rows(text: str) -> dict[str, list[str]]:
    """What is shown of each option."""
    return {line.split()[0]: line.split()[1:] for line in text.splitlines()[1:]}


def test_every_option_is_shown_with_its_unit_and_source(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("transactional.toml").write_text("[topology]\nmax_spout_pending = 2\nretry_pause_ms = 40\n", "utf-8")
    monkeypatch.setenv("TRANSACTIONAL_RETRY_PAUSE_MS", "50")
    done = command("config", "explain", "--set", "attempts_max=3")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0].split() == ["option", "value", "unit", "source", "instead", "of"]
    shown = rows(done.out)
    assert shown["max_spout_pending"] == ["2", "transactional.toml", "1", "(default)"]
    assert shown["retry_pause_ms"] == [
        "50",
        "ms",
        "TRANSACTIONAL_RETRY_PAUSE_MS",
        "40",
        "(transactional.toml),",
        "100",
        "(default)",
    ]
    assert shown["attempts_max"] == ["3", "--set", "none", "(default)"]
    assert shown["stop_when_drained"] == ["false", "default"]
    assert shown["keep_attempts_days"] == ["30", "days", "default"]


def test_what_a_topologys_code_says_is_shown(command: Command) -> None:
    shown = rows(command("config", "explain", "{m}:configured").out)
    assert shown["keep_attempts_days"] == ["7", "days", "code", "30", "(default)"]


def test_another_file_may_be_named(command: Command) -> None:
    Path("other.toml").write_text("[topology]\nretry_pause_ms = 40\n", "utf-8")
    assert rows(command("config", "explain", "--config", "other.toml").out)["retry_pause_ms"][2] == "other.toml"


def test_a_run_takes_what_is_shown(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file, the environment, the topology's code and both kinds of options of the command line."""
    Path("transactional.toml").write_text(
        "[topology]\nmax_spout_pending = 2\nretry_pause_ms = 40\noutage_timeout_ms = 3000\n", "utf-8"
    )
    monkeypatch.setenv("TRANSACTIONAL_RETRY_PAUSE_MS", "50")
    options = ("--max-pending", "4", "--set", "lease_ms=20000", "--journal", "journal")
    assert command(*RUN, *options, "{m}:configured").code == 0
    started = next(line for _, line, _ in read_journal("journal"))
    assert isinstance(started, RunStarted)
    config = started.config
    assert (config.max_spout_pending, config.retry_pause_ms, config.lease_ms) == (4, 50, 20_000)
    assert (config.outage_timeout_ms, config.keep_attempts_days, config.stop_when_drained) == (3_000, 7, True)


def test_a_mistake_is_one_line(command: Command) -> None:
    Path("transactional.toml").write_text("[topology]\nlease = 2\n", "utf-8")
    for arguments in (("config", "explain"), (*RUN, "{m}:topology")):
        done = command(*arguments)
        assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
        assert done.err.startswith("TX100: transactional.toml: there is no option 'lease' — did you mean 'lease_ms'?")


def test_a_run_stores_where_its_options_are_from(command: Command) -> None:
    Path("transactional.toml").write_text("[topology]\nmax_spout_pending = 2\n", "utf-8")
    given = ("--set", "max_spout_pending=3", "--until-drained")
    assert command("run", "{m}:configured", "--master", "none", *given).code == 0
    with closing(open_for_reading("sqlite:///transactional.db")) as store:
        [run] = store.runs("words", limit=9)
    assert run.about.sources == {
        "keep_attempts_days": [["code", 7], ["default", 30]],
        "max_spout_pending": [["--set", 3], ["transactional.toml", 2], ["default", 1]],
        "stop_when_drained": [["--until-drained", True], ["default", False]],
    }
