"""The command line: exit codes, output that is no terminal's, and mistakes told in one line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import cloudpickle
import pytest
from pyspark import cloudpickle as spark_cloudpickle

from tests.unit.command_line import RUN, Command
from transactional.errors import CommitStuck
from transactional.operations.cli import main as cli
from transactional.operations.loading import load_topology
from transactional.runtime.engine.history.journal import read_journal
from transactional.runtime.engine.history.replay import replay

SCRIPT = Path(sys.executable).parent / "transactional"
# --- what is right ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["{m}:topology", "{m}:build"])
def test_a_run_shows_each_commit_and_a_summary(command: Command, target: str) -> None:
    done = command(*RUN, "--max-pending", "3", target)
    assert (done.code, done.err) == (0, "")
    *commits, summary = done.out.splitlines()
    line = r"transaction %s:\d+ committed: %s rows in \d+ ms; \d+ rows/s(, lag \d)?"
    assert [
        bool(re.fullmatch(line % wanted, text)) for wanted, text in zip([(1, 2), (2, 1)], commits, strict=True)
    ] == [
        True,
        True,
    ]
    assert summary == "2 transactions committed, the last is 2; 0 attempts failed"


def test_status_and_txns_show_what_the_store_knows(command: Command) -> None:
    command(*RUN, "{m}:topology")
    status = command("status")
    assert status.code == 0
    header, row = status.out.splitlines()[1], status.out.splitlines()[3]
    assert header.replace("┃", " ").split() == [
        *("topology", "name", "state", "committed", "ago", "lag", "desired", "owner", "epoch")
    ]
    shown = [cell.strip() for cell in row.split("│")[1:-1]]
    assert shown[4].endswith((" s", " min"))
    assert shown[:4] + shown[5:] == ["words", "words", "drained", "2", "0", "active", "-", "1"]
    [known] = map(json.loads, command("status", "words", "--json").out.splitlines())
    assert {name: known[name] for name in ("topology", "state", "committed_txid", "lag", "error")} == {
        "topology": "words",
        "state": "drained",
        "committed_txid": 2,
        "lag": 0,
        "error": None,
    }
    assert known["run"]["ended"] == "drained"
    txns = command("txns", "words")
    assert txns.code == 0
    rows = [line.replace("│", " ").split() for line in txns.out.splitlines()[3:-1]]
    assert [row[:4] for row in rows] == [["2", "3", "committed", "1"], ["1", "2", "committed", "2"]]
    attempts = [json.loads(line) for line in command("txns", "words", "--json").out.splitlines()]
    assert [(each["txid"], each["attempt"], each["phase"], each["details"]["lag"]) for each in attempts] == [
        (2, 3, "committed", 0),
        (1, 2, "committed", 1),
    ]
    assert {"lag", "lags", "edges", "states", "letters", "processing"} == set(attempts[0]["details"])
    assert [
        row[:4] for row in (command("txns", "words", "-n", "1").out.splitlines()[3].replace("│", " ").split(),)
    ] == [["2", "3", "committed", "1"]]


def test_a_reset_says_what_it_would_do_and_then_does_it(command: Command) -> None:
    command(*RUN, "{m}:topology")
    told = command("reset", "words")
    assert (told.code, told.out.startswith("topology 'words': committed up to transaction 2, 2 attempts would")) == (
        0,
        True,
    )
    assert "2 transactions" not in command(*RUN, "{m}:topology").out
    done = command("reset", "words", "--yes")
    assert (done.code, "were deleted" in done.out) == (0, True)
    [known] = map(json.loads, command("status", "--json").out.splitlines())
    assert (known["committed_txid"], known["state"], known["run"]) == (0, "not running", None)
    assert command("reset", "nowhere").code == 1


def test_the_store_may_be_named_by_the_environment(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSACTIONAL_STORE", "sqlite:///elsewhere.db")
    assert command(*RUN, "{m}:topology").code == 0
    assert Path("elsewhere.db").is_file()
    assert not Path("transactional.db").exists()


def test_a_journal_is_written_and_replays(command: Command) -> None:
    assert command(*RUN, "--journal", "journal", "{m}:topology").code == 0
    lines = list(read_journal("journal"))
    assert replay(lines) == len(lines) - 1


def test_a_run_has_a_name_and_the_next_one_resumes_under_another(command: Command, module: str) -> None:
    """Progress goes by the transactional id, whatever the run is called (Storm: a redeployed topology)."""
    assert command(*RUN, "--name", "deploy-7", "{m}:topology").out.splitlines()[-1].startswith("2 transactions")
    assert command("status").out.splitlines()[3].replace("│", " ").split()[:4] == ["words", "deploy-7", "drained", "2"]
    again = command(*RUN, "--name", "deploy-8", "{m}:topology")
    assert (again.code, again.out) == (0, "0 transactions committed, the last is 2; 0 attempts failed\n")
    assert command("status").out.splitlines()[3].replace("│", " ").split()[:4] == ["words", "deploy-8", "drained", "2"]


def test_a_changed_topology_runs_when_it_is_reported(command: Command) -> None:
    assert command(*RUN, "{m}:build").code == 0
    refused = command(*RUN, "{m}:changed")
    assert (refused.code, refused.err[:7]) == (1, "TX403: ")
    accepted = command(*RUN, "--accept-changes", "{m}:changed")
    # It is another table, which holds nothing of what the store says is committed.
    assert accepted.err.startswith("TX404: committer 'count': its table (")
    assert "transaction 2 is committed, and no transaction was ever written to it" in accepted.err


# --- what goes wrong ----------------------------------------------------------------------------------------------


def test_a_bolt_that_fails_is_reported_in_one_line_and_its_traceback_is_kept(command: Command) -> None:
    done = command(*RUN, "--attempts-max", "2", "{m}:failing")
    told = "TX302 task 0 of 1: component 'bolt' raised ValueError: no [/red] :cat: [0, 1)"
    told += """, on {"word": "cat"} from 'spout', in memory[0] [0, 1)"""
    assert done.code == 1
    place = re.search(r" \(\w+\.py:\d+\)(?=, on )", done.err)
    assert place is not None
    told = told.replace(", on ", f"{place[0]}, on ")
    assert done.err == f"TX408: transaction 1 failed 2 times (attempts_max = 2); the last error: {told}\n"
    failed = [line for line in done.out.splitlines() if "failed in processing" in line]
    assert [line.split(" failed in processing")[1] for line in failed] == [f", retrying in 100 ms: {told}", f": {told}"]
    txns = command("txns", "words")
    assert txns.out.count(told) == 2
    assert "Traceback" not in txns.out
    assert command("txns", "words", "--errors").out.count("    raise ValueError(") == 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("run", "topology"), "TX100: 'topology' is not of the form MODULE:TOPOLOGY, such as "),
        (("run", "{m}:"), "TX100: '{m}:' is not of the form MODULE:TOPOLOGY, such as "),
        (
            ("run", "{m}.py:topology"),
            "TX100: {m}.py:topology: No module named '{m}.py'; '{m}' is not a package; run from",
        ),
        (("run", "folder/{m}:topology"), "TX100: 'folder/{m}:topology' is not of the form MODULE:TOPOLOGY, such as "),
        (("run", "nowhere:topology"), "TX100: nowhere:topology: No module named 'nowhere'; run from the folder that "),
        (("run", "{m}:topologi"), "TX100: module {m} has no 'topologi' — did you mean 'topology'?"),
        (("run", "{m}:not_built"), "TX100: {m}:not_built is a TransactionalTopologyBuilder, not a Topology: did you "),
        (("run", "{m}:number"), "TX100: {m}:number is a int, not a Topology: did you forget .build()?"),
        (("run", "{m}:wants"), "TX100: {m}:wants can't be called without arguments: missing a required argument: 'dir"),
        (
            ("run", "{m}:broken"),
            "TX100: bolt 'count' uses field 'wrod', which 'spout' does not have; its fields are: wo",
        ),
        (
            ("run", "--store", "sqlit:///a.db", "{m}:topology"),
            "TX100: no store for 'sqlit' URLs; known: postgresql, sq",
        ),
        (
            ("run", "--attempts-max", "0", "{m}:topology"),
            "TX100: --attempts-max: attempts_max must be at least 1, got 0",
        ),
        (
            ("run", "--max-pending", "0", "{m}:topology"),
            "TX100: --max-pending: max_spout_pending must be at least 1, got 0",
        ),
        (
            ("run", "--set", "lease=20000", "{m}:topology"),
            "TX100: --set: there is no option 'lease' — did you mean 'lease_ms'?; there are: ",
        ),
        (
            ("run", "--config", "elsewhere.toml", "{m}:topology"),
            "TX100: the configuration file elsewhere.toml can't be read: No such file or directory",
        ),
        (
            ("run", "--journal", "no/where", "{m}:topology"),
            "TX100: the journal no/where can't be written: No such file",
        ),
        (("status",), "TX100: there is no store at transactional.db: nothing has run with --store sqlite:///transacti"),
        (("txns", "words"), "TX100: there is no store at transactional.db: "),
    ],
)
def test_a_mistake_is_reported_in_one_line(
    command: Command, module: str, arguments: tuple[str, ...], expected: str
) -> None:
    done = command(*arguments[:1], *(("--master", "none") if arguments[0] == "run" else ()), *arguments[1:])
    assert done.err.startswith(expected.format(m=module))
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)


def test_the_module_is_sent_to_executors_by_value(module: str) -> None:
    topology = load_topology(f"{module}:failing")
    bolt = next(component for component in topology.components if component.id == "bolt").bolt
    for pickled in (cloudpickle.dumps(bolt), spark_cloudpickle.dumps(bolt)):  # type: ignore[no-untyped-call]
        assert b"no [/red] :cat:" in pickled, "the function itself, not its name"


@pytest.mark.parametrize("looking", ["status", "txns"])
def test_a_topology_that_the_store_does_not_know_is_reported(command: Command, looking: str) -> None:
    command(*RUN, "{m}:topology")
    done = command(looking, "wrods")
    assert done.err == "TX100: there is no topology 'wrods' in the store; it has: words — did you mean 'words'?\n"
    assert done.code == 1


def test_a_table_that_is_gone_is_reported(command: Command, module: str) -> None:
    command(*RUN, "{m}:topology")
    del sys.modules[module]
    done = command(*RUN, "{m}:topology")
    assert done.err.startswith("TX404: committer 'count': its table (")
    assert "transaction 2 is committed, and no transaction was ever written to it" in done.err
    assert (done.code, done.err.count("\n")) == (1, 1)


@pytest.mark.parametrize("arguments", [("run",), ("fly",), ("run", "--fast", "{m}:topology"), ("txns",)])
def test_a_wrong_usage_ends_with_2(command: Command, arguments: tuple[str, ...]) -> None:
    done = command(*arguments)
    assert (done.code, done.out) == (2, "")
    assert "Usage" in done.err


def test_what_is_stuck_does_not_keep_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: list[int] = []

    def stuck() -> None:
        raise CommitStuck("the commit phase has run for too long\nand more")

    monkeypatch.setattr(cli, "app", stuck)
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    with pytest.raises(SystemExit):
        cli.main()
    assert ended == [75]
    assert re.match(
        r"TX409: the commit phase has run for too long \(\S+test_main\.py:\d+\)\n$", capsys.readouterr().err
    )


# --- as a process -------------------------------------------------------------------------------------------------


def started(*arguments: str) -> subprocess.Popen[str]:
    command = [str(SCRIPT), "run", "--master", "none", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.filterwarnings("default")
def test_a_weaker_guarantee_is_a_warning_on_stderr(command: Command) -> None:
    done = command(*RUN, "{m}:weaker")
    assert done.code == 0
    assert done.out.splitlines()[-1] == "2 transactions committed, the last is 2; 0 attempts failed"
    assert done.err.startswith(
        "warning: committer 'count' keeps a transactional state behind the opaque spout 'spout': "
    )
    assert done.err.count("\n") == 1


def wait_for(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(f"the process ended without {text!r}")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_drains_the_run(module: str, number: signal.Signals) -> None:
    with started(f"{module}:topology") as process:
        wait_for(process, "transaction 2:3 committed")
        process.send_signal(number)
        out, err = process.communicate(timeout=240)
    assert (process.returncode, err) == (0, "")
    assert out.splitlines()[-1] == "2 transactions committed, the last is 2; 0 attempts failed"


@pytest.mark.long("the first signal: test_a_signal_drains_the_run")
def test_a_second_signal_ends_what_hangs(module: str) -> None:
    with started(f"{module}:hanging") as process:
        wait_for(process, "hangs")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
    assert process.returncode in (-signal.SIGINT, -signal.SIGTERM)


def test_the_version_and_what_a_shell_completes(command: Command) -> None:
    assert re.fullmatch(r"transactional \d+\.\d+\.\d+\n", command("--version").out)
    told = command("--help").out
    assert "--install-completion" in told
    assert "cli_lifecycle" not in told, "what stands in which module is nothing for users"
