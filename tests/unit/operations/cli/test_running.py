"""`run --metrics`: scraped while it runs, refused when it can't be served."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from tests.unit.command_line import RUN, Command
from transactional.core.store import Lease
from transactional.core.store.progress import Progress
from transactional.errors import ConfigError
from transactional.model.attempt import AttemptId, Epoch
from transactional.operations.cli import running
from transactional.operations.launch.running import run_topology
from transactional.operations.loading import load_topology
from transactional.runtime.engine.history.observing import Leading, StandingBy

SCRAPED = """
import urllib.request
from pathlib import Path

def scrape(row):
    for path in ("metrics", "livez", "readyz"):
        with urllib.request.urlopen(f"http://127.0.0.1:{Path('port').read_text()}/{path}") as answer:
            Path(path).write_bytes(answer.read())
    return tuple(row)

def scraped():
    return with_bolt(scrape)
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def test_a_run_is_scraped_while_it_runs(command: Command, module: str) -> None:
    port = free_port()
    Path("port").write_text(str(port))
    with Path(f"{module}.py").open("a") as file:
        file.write(SCRAPED)
    done = command(*RUN, "--max-pending", "1", "--metrics", f"127.0.0.1:{port}", "{m}:scraped")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0] == f"metrics are at http://127.0.0.1:{port}/metrics"
    assert 'transactional_committed_txid{topology="words"} 1.0' in Path("metrics").read_text()
    assert (Path("livez").read_text(), Path("readyz").read_text()) == ("leading\n", "leading\n")
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port))


def test_a_port_that_is_taken_is_one_line_at_the_start(command: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        done = command(*RUN, "--metrics", address, "{m}:topology")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"TX100: metrics can't listen on {address}: ")
    assert done.err.count("\n") == 1
    assert not Path("transactional.db").exists()


def test_without_its_package_it_says_what_to_install(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        name for name in sys.modules if name.startswith(("prometheus_client", "transactional.operations.telemetry.ser"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    done = command(*RUN, "--metrics", "127.0.0.1:0", "{m}:topology")
    assert (done.code, "pip install 'transactional-topologies[metrics]'" in done.err) == (1, True)


def test_collections_of_garbage_leave_out_what_a_run_has_loaded_once_it_leads(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled = list[str]()
    monkeypatch.setattr(running, "keep_what_is_loaded", lambda: settled.append("loaded"))
    assert command(*RUN, "--max-pending", "1", "{m}:build").code == 0
    assert settled == ["loaded"]


def test_a_standby_settles_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    settled = list[str]()
    monkeypatch.setattr(running, "keep_what_is_loaded", lambda: settled.append("loaded"))
    settling, lease = running.LoadedObjectsFreezer(), Lease("words", Epoch(1), "me", Progress(), AttemptId(1))
    settling.notice(0, StandingBy())
    assert settled == ["loaded"]
    settling.notice(9, Leading(lease, None))
    assert settled == ["loaded"]


HOST = "sqlite://progress.db"
"""Two slashes: SQLAlchemy takes the file for a host, and the database for one in memory."""


@pytest.mark.parametrize("where", ["option", "environment", "code"])
def test_a_store_whose_url_names_a_host_is_refused(
    where: str, command: Command, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was in memory, without a word: a run that could not be continued."""
    if where == "code":
        with pytest.raises(ConfigError, match="did you mean sqlite:///progress"):
            run_topology(load_topology(f"{module}:build"), store=HOST, master="none")
        return
    if where == "environment":
        monkeypatch.setenv("TRANSACTIONAL_STORE", HOST)
    done = command(*RUN, *["--store", HOST] * (where == "option"), "{m}:build")
    assert (done.code, done.out) == (1, "")
    assert "names a host, and SQLite has none: did you mean sqlite:///progress.db?" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [("status",), ("verify", "words"), ("doctor", "{m}:build"), ("rewind", "{m}:build")]
)
def test_so_do_commands_that_only_look(arguments: tuple[str, ...], command: Command) -> None:
    done = command(*arguments, "--store", HOST)
    assert done.code == 1
    assert "host" in done.err
    assert "sqlite:///" in done.err
