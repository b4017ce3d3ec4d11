"""Which frames a traceback shows: the user's, and what the user's have called."""

import json
import os
from pathlib import Path

import pytest

from state import MemoryMapState
from transactional.errors import ConfigError
from transactional.plumbing.tracebacks import DEBUG, raised, traceback_text, user_place


def caught(text: str) -> ValueError:
    """What a library raises that is called from here."""
    with pytest.raises(ValueError, match="Expecting") as error:
        json.loads(text)
    return error.value


PLACE = f"{os.path.relpath(__file__)}:{caught.__code__.co_firstlineno + 3}"


def test_the_place_is_the_last_line_of_the_users_own() -> None:
    assert user_place(caught("{")) == PLACE


def test_an_error_is_reported_from_a_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error, folder = caught("{"), tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert user_place(error) == f"{__file__}:{PLACE.rpartition(':')[2]}"


def test_the_place_stands_in_the_first_line() -> None:
    with pytest.raises(RuntimeError) as error:
        raise RuntimeError("one\ntwo")
    first, second = raised(error.value).splitlines()
    assert first.startswith(f"RuntimeError: one ({os.path.relpath(__file__)}:")
    assert second == "two"


def test_what_the_user_has_called_is_shown() -> None:
    text = traceback_text(caught("?"))
    assert "json.loads(text)" in text
    assert "decoder.py" in text
    assert text.endswith(f"\nraised in {PLACE}")
    assert raised(caught("?")) == f"JSONDecodeError: Expecting value: line 1 column 1 (char 0) ({PLACE})"


@pytest.mark.parametrize("debug", ["", "1"])
def test_frames_of_the_framework_are_shown_for_debugging_only(monkeypatch: pytest.MonkeyPatch, debug: str) -> None:
    monkeypatch.setenv(DEBUG, debug)
    with pytest.raises(ConfigError) as error:
        MemoryMapState("word").aggregate()
    text = traceback_text(error.value)
    assert ("state/table_state.py" in text) is bool(debug)
    assert f'"{__file__}"' in text


def test_an_error_of_the_framework_alone_is_shown_whole() -> None:
    error = ConfigError("made, and raised by nobody")
    assert traceback_text(error) == "transactional.errors.ConfigError: made, and raised by nobody"
    assert user_place(error) is None
