"""Shortens tracebacks to what users need: the frames of their own code and of the libraries that it called.

A location is a text `FILE:LINE` in the user's code. It ends messages, so that the user finds the line without reading
the traceback. With `TRANSACTIONAL_DEBUG` in the environment every frame is shown.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException, walk_tb
from types import FrameType, TracebackType
from typing import Any, Final

DEBUG: Final = "TRANSACTIONAL_DEBUG"
_FRAMEWORK: Final = tuple(
    f"{Path(__file__).parents[3] / package}{os.sep}"
    for package in ("transactional", "spouts", "state", "sinks", "verifier")
)
_LIBRARIES: Final = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib", "platlib"))
_NO_FILE: Final = ("<frozen ", "<string>")
_RAISED: Final = "raised in "
_LOCATION: Final = re.compile(r" \([^()]+:\d+\)$")
_CELL: Final = re.compile(r"[^\s\"'(]*[/\\]ipykernel_\d+[/\\]\d+\.py")


def traceback_text(error: BaseException) -> str:
    """Return the traceback of an error and its causes, without frames of the framework and of the user's callers.

    If no frame is the user's, all frames are shown. The last line says where the user's code raised.
    """
    traceback = TracebackException.from_exception(error)
    location = error_location(error)
    if not os.environ.get(DEBUG) and location is not None:
        _shorten_all(traceback)
    text = "".join(traceback.format()).rstrip()
    ends_with_location_line = text.rpartition("\n")[2].startswith(
        _RAISED
    )  # an error that quotes another one's traceback
    return text if location is None or ends_with_location_line else f"{text}\n{_RAISED}{location}"


def shorten_traceback(error: BaseException) -> None:
    """Remove the frames of the framework and of libraries from the traceback of an error that is about to be raised.

    The cause of the error is removed as well: its message already describes it.
    """
    if os.environ.get(DEBUG):
        return
    user_traceback: TracebackType | None = None
    for frame, line in reversed(list(walk_tb(error.__traceback__))):
        if _is_user_file(frame.f_code.co_filename):
            user_traceback = TracebackType(user_traceback, frame, frame.f_lasti, line)
    error.__traceback__, error.__cause__ = user_traceback, None


def text_in_cell(error: BaseException) -> str:
    """Return the text that a notebook's cell shows for an error, without its cause, which the message describes."""
    if not os.environ.get(DEBUG):
        error.__cause__ = None
    return with_cells(traceback_text(error))


def with_cells(text: str) -> str:
    """Replace the names of files that IPython makes for cells by the notebook's names for these cells."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return text if shell is None else _CELL.sub(lambda match: _cell_name(shell, match[0]), text)


def _cell_name(shell: Any, filename: str) -> str:
    try:
        return " ".join(shell.compile.format_code_name(filename))
    except (AttributeError, TypeError):  # another version of IPython, or a cell of another kernel
        return filename


def function_location(function: Any) -> str | None:
    """Return the location at which a user's function begins, or None if the function is not the user's."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(function, "__code__", None)
    if code is None or not _is_user_file(code.co_filename):
        return None
    return f"{_relative_path(code.co_filename)}:{code.co_firstlineno}"


def caller_location() -> str | None:
    """Return the location at which user code has called the framework, or None if none is on the stack."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and not _is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else f"{_relative_path(frame.f_code.co_filename)}:{frame.f_lineno}"


def describe_error(error: BaseException) -> str:
    """Return an error's class and text, with the location at which user code raised it in the first line."""
    return f"{type(error).__name__}: {text_with_location(error)}"


def text_with_location(error: BaseException) -> str:
    """Return the text of an error, with the location at which user code raised it in the first line."""
    _, newline, remaining_text = str(error).partition("\n")
    return f"{first_line_with_location(error)}{newline}{remaining_text}"


def text_with_caller(error: BaseException) -> str:
    """Return the text of an error, with the location of the user's call if the framework raised it.

    An error that user code raised itself keeps its text.
    """
    *_, (frame, _) = walk_tb(error.__traceback__)
    return str(error) if _is_user_file(frame.f_code.co_filename) else text_with_location(error)


def first_line_with_location(error: BaseException) -> str:
    """Return the first line of an error's text, with the location at which user code raised it."""
    first, location = str(error).partition("\n")[0], error_location(error)
    return first if location is None or location in first or ends_with_location(first) else f"{first} ({location})"


def ends_with_location(text: str) -> bool:
    """Return True if the text of an error already ends with a location, such as that of a wrong declaration."""
    return _LOCATION.search(text) is not None


def error_location(error: BaseException) -> str | None:
    """Return the location at which user code raised an error, or called the code that did, or None without user code.

    Files below the current folder are named relative to it.
    """
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    user_frames = [(name, line) for name, line in frames if _is_user_file(name)]
    return f"{_relative_path(user_frames[-1][0])}:{user_frames[-1][1]}" if user_frames else None


def _relative_path(filename: str) -> str:
    try:
        return with_cells(filename.removeprefix(f"{Path.cwd()}{os.sep}"))
    except OSError:  # somebody has deleted the current folder, which must not hide the error that is reported
        return filename


def _shorten_all(traceback: TracebackException) -> None:
    traceback.stack = StackSummary.from_list(_user_frames(traceback.stack))
    for linked in (traceback.__cause__, traceback.__context__, *(traceback.exceptions or ())):
        if linked is not None:
            _shorten_all(linked)


def _user_frames(frames: Iterable[FrameSummary]) -> list[FrameSummary]:
    all_frames = list(frames)
    first_index = next((number for number, frame in enumerate(all_frames) if _is_user_file(frame.filename)), None)
    return (
        all_frames
        if first_index is None
        else [frame for frame in all_frames[first_index:] if not frame.filename.startswith(_FRAMEWORK)]
    )


def _is_user_file(filename: str) -> bool:
    return not filename.startswith((*_FRAMEWORK, *_LIBRARIES, *_NO_FILE))
