"""`transactional ui`, `ui --out` and `run --ui`: what is served, and each refusal in one line."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack, closing, suppress
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from tests.unit.command_line import Command
from transactional.model.errors import ConfigError
from transactional.operations.loading import open_store
from transactional.operations.web.server import PORT, Address, WebServer, bind


def fetched(url: str) -> str:
    """What a browser gets that opens the printed address."""
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(CookieJar())
    )
    with opener.open(url, timeout=30) as answer:
        page: str = answer.read().decode()
        return page


def address_in(line: str) -> str:
    found = re.search(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32,}", line)
    assert found is not None, line
    return found.group()


@pytest.mark.long("the same server in this process: test_a_run_shows_its_own_console_and_ends_with_it")
def test_a_store_is_served_until_it_is_interrupted(command: Command, tmp_path: Path) -> None:
    command("run", "{m}:build", "--master", "none", "--until-drained")
    program = [sys.executable, "-m", "transactional", "ui", "--port", "0"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        url = address_in(process.stdout.readline())
        assert "drained" in fetched(url)
        assert "Timeline of transactions" in fetched(url.replace("/?", "/t/words/?"))
        with pytest.raises(urllib.error.HTTPError, match="401"):
            fetched(url.partition("?")[0])
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in (0, 130, -signal.SIGINT)
        assert process.stdout.read() == ""
        assert "Traceback" not in process.stderr.read()


def test_a_run_shows_its_own_console_and_ends_with_it(command: Command) -> None:
    done = command("run", "{m}:build", "--master", "none", "--until-drained", "--ui")
    assert done.code == 0
    url = address_in(done.out)
    with pytest.raises(urllib.error.URLError):
        fetched(url)


def test_a_run_whose_usual_port_is_taken_shows_its_console_on_another_one(command: Command) -> None:
    with ExitStack() as stack:
        with suppress(ConfigError):  # somebody else has it
            stack.enter_context(closing(bind(Address())))
        done = command("run", "{m}:build", "--master", "none", "--until-drained", "--ui")
    assert done.code == 0, done
    assert f":{PORT}/" not in address_in(done.out)


def test_a_port_that_is_taken_is_one_line(command: Command) -> None:
    command("run", "{m}:build", "--master", "none", "--until-drained")
    with closing(bind(Address(port=0))) as listening:
        done = command("ui", "--port", str(listening.getsockname()[1]))
    assert done.code == 1
    assert re.fullmatch(r"TX\d+: the console can't listen on 127.0.0.1:\d+: .*\n", done.err)


def test_others_are_not_let_in_without_a_token_of_their_own(command: Command) -> None:
    command("run", "{m}:build", "--master", "none", "--until-drained")
    done = command("ui", "--host", "0.0.0.0")
    assert (done.code, "--token-file" in done.err) == (1, True)


def test_a_token_that_comes_from_a_file_is_not_printed(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("run", "{m}:build", "--master", "none", "--until-drained")
    (tmp_path / "token").write_text("0123456789abcdef-secret")
    monkeypatch.setattr(WebServer, "run", lambda *_, **__: None)
    done = command("ui", "--port", "0", "--token-file", "token")
    assert re.fullmatch(
        r"the console is at http://127\.0\.0\.1:\d+/\?token=TOKEN, with the token of token\n", done.out
    ), done
    assert "secret" not in done.out + done.err


def test_a_store_that_is_not_there_is_not_made(command: Command, tmp_path: Path) -> None:
    done = command("ui", "--store", f"sqlite:///{tmp_path}/none.db")
    assert (done.code, "there is no store at" in done.err) == (1, True)
    assert not (tmp_path / "none.db").exists()


def test_a_page_is_written_to_a_file(command: Command, tmp_path: Path) -> None:
    command("run", "{m}:build", "--master", "none", "--until-drained")
    for named in ((), ("words",)):  # the only topology of a store need not be named
        done = command("ui", *named, "--out", str(tmp_path / "words.html"))
        assert (done.code, "has the overview of words" in done.out) == (0, True)
        assert "Timeline of transactions" in (tmp_path / "words.html").read_text("utf-8")
        (tmp_path / "words.html").unlink()
    done = command("ui", "words", "--out", str(tmp_path))
    assert (done.code, "can't be written" in done.err) == (1, True)
    done = command("ui", "words")
    assert (done.code, "words is for --out" in done.err) == (1, True)


def test_of_several_topologies_the_one_that_is_written_is_named(command: Command, tmp_path: Path) -> None:
    with closing(open_store(f"sqlite:///{tmp_path}/transactional.db")) as store:
        for topology_id in ("people", "words"):
            store.acquire(topology_id, {}, owner="me", lease_ms=10_000)
    done = command("ui", "--out", "page.html")
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "the store has: people, words; name one: transactional ui ID --out page.html" in done.err
    assert not (tmp_path / "page.html").exists()
    assert "did you mean 'words'" in command("ui", "word", "--out", "page.html").err
