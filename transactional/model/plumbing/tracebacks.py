"""Tracebacks as users need them: the frames of their own code and of what it has called, and where it raised.

With `TRANSACTIONAL_DEBUG` in the environment every frame is shown.
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
    f"{Path(__file__).parents[3] / package}{os.sep}" for package in ("transactional", "spouts", "state", "verifier")
)
_LIBRARIES: Final = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib", "platlib"))
_NO_FILE: Final = ("<frozen ", "<string>")
_RAISED: Final = "raised in "
_PLACE: Final = re.compile(r" \([^()]+:\d+\)$")
_CELL: Final = re.compile(r"[^\s\"'(]*[/\\]ipykernel_\d+[/\\]\d+\.py")


def traceback_text(error: BaseException) -> str:
    """The traceback of an error and of its causes, without the frames of the framework, and without those that called
    the user's code; all of them if no frame is the user's. The last line says where that code raised."""
    shown = TracebackException.from_exception(error)
    place = user_place(error)
    if not os.environ.get(DEBUG) and place is not None:
        _shorten(shown)
    text = "".join(shown.format()).rstrip()
    says_it = text.rpartition("\n")[2].startswith(_RAISED)  # an error that quotes another one's traceback
    return text if place is None or says_it else f"{text}\n{_RAISED}{place}"


def shorten(error: BaseException) -> None:
    """Leave in the traceback of an error that is about to be raised what is neither the framework's nor a library's.
    What it was raised from goes, too: the error says it in its own words."""
    if os.environ.get(DEBUG):
        return
    kept: TracebackType | None = None
    for frame, line in reversed(list(walk_tb(error.__traceback__))):
        if _is_users(frame.f_code.co_filename):
            kept = TracebackType(kept, frame, frame.f_lasti, line)
    error.__traceback__, error.__cause__ = kept, None


def text_in_cell(error: BaseException) -> str:
    """What a cell of a notebook shows of an error that says in its own words what it was raised from."""
    if not os.environ.get(DEBUG):
        error.__cause__ = None
    return with_cells(traceback_text(error))


def with_cells(text: str) -> str:
    """The text with the cells of a notebook as the notebook calls them, where it names the files that IPython gives
    them."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return text if shell is None else _CELL.sub(lambda found: _cell(shell, found[0]), text)


def _cell(shell: Any, filename: str) -> str:
    try:
        return " ".join(shell.compile.format_code_name(filename))
    except (AttributeError, TypeError):  # another version of IPython, or a cell of another kernel
        return filename


def place_of(function: Any) -> str | None:
    """Where a function of the user's begins, as `FILE:LINE`; None: it is none of theirs."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(function, "__code__", None)
    if code is None or not _is_users(code.co_filename):
        return None
    return f"{_from_here(code.co_filename)}:{code.co_firstlineno}"


def calling_place() -> str | None:
    """Where the user's own code is, which has called the framework, as `FILE:LINE`; None: it is not on the stack."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and not _is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else f"{_from_here(frame.f_code.co_filename)}:{frame.f_lineno}"


def raised(error: BaseException) -> str:
    """An error in short: its class, its text, and in the first line where the user's own code raised it."""
    return f"{type(error).__name__}: {shown(error)}"


def shown(error: BaseException) -> str:
    """The text of an error, with the place where the user's own code raised it in its first line."""
    _, newline, rest = str(error).partition("\n")
    return f"{with_place(error)}{newline}{rest}"


def shown_if_noticed(error: BaseException) -> str:
    """The text of an error of the framework, with the place if it was noticed in a call of the user's code; an error
    that this code raises itself says what it wants to."""
    *_, (frame, _) = walk_tb(error.__traceback__)
    return str(error) if _is_users(frame.f_code.co_filename) else shown(error)


def with_place(error: BaseException) -> str:
    """The first line of an error's text, and where the user's own code raised it."""
    first, place = str(error).partition("\n")[0], user_place(error)
    return first if place is None or place in first or ends_with_place(first) else f"{first} ({place})"


def ends_with_place(text: str) -> bool:
    """Whether the text of an error says already where the user's mistake is: in a declaration, for example, which is
    not the call that noticed it."""
    return _PLACE.search(text) is not None


def user_place(error: BaseException) -> str | None:
    """Where the user's own code raised an error, or called what did, as `FILE:LINE`; None: it was not on the stack.

    Files below the current folder are named from there.
    """
    places = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    users = [(name, line) for name, line in places if _is_users(name)]
    return f"{_from_here(users[-1][0])}:{users[-1][1]}" if users else None


def _from_here(filename: str) -> str:
    try:
        return with_cells(filename.removeprefix(f"{Path.cwd()}{os.sep}"))
    except OSError:  # somebody has deleted the current folder, which must not hide the error that is reported
        return filename


def _shorten(shown: TracebackException) -> None:
    shown.stack = StackSummary.from_list(_kept(shown.stack))
    for other in (shown.__cause__, shown.__context__, *(shown.exceptions or ())):
        if other is not None:
            _shorten(other)


def _kept(frames: Iterable[FrameSummary]) -> list[FrameSummary]:
    every = list(frames)
    first = next((number for number, frame in enumerate(every) if _is_users(frame.filename)), None)
    return every if first is None else [each for each in every[first:] if not each.filename.startswith(_FRAMEWORK)]


def _is_users(filename: str) -> bool:
    return not filename.startswith((*_FRAMEWORK, *_LIBRARIES, *_NO_FILE))
