"""Which frames a traceback shows: the user's, and what the user's have called."""

import json
import os
import sys
from functools import partial
from pathlib import Path
from traceback import StackSummary, walk_tb
from types import SimpleNamespace

import pytest

from state import MemoryMapState
from transactional.errors import ConfigError
from transactional.model.errors import brief_errors
from transactional.model.plumbing.tracebacks import (
    DEBUG,
    describe_error,
    error_location,
    function_location,
    traceback_text,
    with_cells,
)


def caught(text: str) -> ValueError:
    """What a library raises that is called from here."""
    with pytest.raises(ValueError, match="Expecting") as error:
        json.loads(text)
    return error.value


PLACE = f"{os.path.relpath(__file__)}:{caught.__code__.co_firstlineno + 3}"


def test_the_place_is_the_last_line_of_the_users_own() -> None:
    assert error_location(caught("{")) == PLACE


def test_an_error_is_reported_from_a_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error, folder = caught("{"), tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert error_location(error) == f"{__file__}:{PLACE.rpartition(':')[2]}"


def test_the_place_stands_in_the_first_line() -> None:
    with pytest.raises(RuntimeError) as error:
        raise RuntimeError("one\ntwo")
    first, second = describe_error(error.value).splitlines()
    assert first.startswith(f"RuntimeError: one ({os.path.relpath(__file__)}:")
    assert second == "two"


def test_what_the_user_has_called_is_shown() -> None:
    text = traceback_text(caught("?"))
    assert "json.loads(text)" in text
    assert "decoder.py" in text
    assert text.endswith(f"\nraised in {PLACE}")
    assert describe_error(caught("?")) == f"JSONDecodeError: Expecting value: line 1 column 1 (char 0) ({PLACE})"


@pytest.mark.parametrize("debug", ["", "1"])
def test_frames_of_the_framework_are_shown_for_debugging_only(monkeypatch: pytest.MonkeyPatch, debug: str) -> None:
    monkeypatch.setenv(DEBUG, debug)
    with pytest.raises(ConfigError) as error:
        MemoryMapState("word").aggregate()
    text = traceback_text(error.value)
    assert ("state/updates.py" in text) is bool(debug)
    assert f'"{__file__}"' in text


def test_an_error_of_the_framework_alone_is_shown_whole() -> None:
    error = ConfigError("made, and raised by nobody")
    assert traceback_text(error) == "transactional.model.errors.ConfigError: made, and raised by nobody"
    assert error_location(error) is None


def deep() -> None:
    MemoryMapState("word").aggregate()


def said_otherwise() -> None:
    try:
        deep()
    except ConfigError as error:
        raise ConfigError("in other words") from error


@pytest.mark.parametrize("debug", ["", "1"])
def test_an_error_that_leaves_the_framework_shows_the_users_frames_only(
    monkeypatch: pytest.MonkeyPatch, debug: str
) -> None:
    monkeypatch.setenv(DEBUG, debug)
    with pytest.raises(ConfigError) as error, brief_errors():
        deep()
    frames = [frame.name for frame in StackSummary.extract(walk_tb(error.value.__traceback__))]
    assert frames[1] == "deep"
    assert ("aggregate" in frames) is bool(debug)
    with pytest.raises(ConfigError) as caused, brief_errors():
        said_otherwise()
    assert (caused.value.__cause__ is not None) is bool(debug)


def test_other_errors_keep_their_frames() -> None:
    with pytest.raises(ValueError, match="Expecting") as error, brief_errors():
        json.loads("{")
    assert "decode" in [frame.name for frame in StackSummary.extract(walk_tb(error.value.__traceback__))]


class Compiler:
    """IPython's, which knows its cells by the files that it gives them."""

    def format_code_name(self, name: str) -> tuple[str, str] | None:
        return ("Cell", "In[3]") if name == "/tmp/ipykernel_7/1234.py" else None


def test_a_cell_is_called_as_the_notebook_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'File "/tmp/ipykernel_7/1234.py", line 2 (/tmp/ipykernel_7/1234.py:2) File "/tmp/ipykernel_8/99.py"'
    assert with_cells(text) == text
    shell = SimpleNamespace(compile=Compiler())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert with_cells(text) == 'File "Cell In[3]", line 2 (Cell In[3]:2) File "/tmp/ipykernel_8/99.py"'
    [shown] = ConfigError("at /tmp/ipykernel_7/1234.py:1")._render_traceback_()
    assert shown == "transactional.model.errors.ConfigError: at Cell In[3]:1"


def test_what_an_error_was_raised_from_is_shown_in_a_cell_for_debugging_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError) as error:
        said_otherwise()
    monkeypatch.setenv(DEBUG, "1")
    assert "direct cause" in error.value._render_traceback_()[0]
    monkeypatch.setenv(DEBUG, "")
    assert "direct cause" not in error.value._render_traceback_()[0]


def test_an_error_that_quotes_the_traceback_of_another_has_one_place() -> None:
    with pytest.raises(ConfigError) as error:
        raise ConfigError(f"in a bolt\n{traceback_text(caught('{'))}")
    assert traceback_text(error.value).endswith(f"\nraised in {PLACE}")
    assert traceback_text(error.value).count("raised in") == 1


def test_the_place_of_a_function() -> None:
    assert function_location(partial(caught, "{")) == f"{os.path.relpath(__file__)}:{caught.__code__.co_firstlineno}"
    assert function_location(json.loads) is None
    assert function_location(MemoryMapState.read) is None
    assert function_location(len) is None
