"""Does what a page tells its reader to do, in order: `python -m tests.docs.run_page PAGE`, in an empty folder.

- A `python` block is executed; the blocks of a page share their names. What it prints must be the `text` block that
  stands right below it, if one does. A block that begins with `# name.py` is saved under that name and imported.
- The commands of a `console` block (`$ …`) are run in the same folder, and must print what stands below them.
- `...` in an expected output stands for anything.

`localhost:9092` becomes the address in the environment variable `BOOTSTRAP`, `http://localhost:8081` the one in
`REGISTRY`, `postgresql://localhost/events` the one in `POSTGRES`. Ends with code 1 at the first difference.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.docs.forking import Forking
from tests.docs.pages import Block, blocks, commands

ADDRESS = "localhost:9092"
REGISTRY = "http://localhost:8081"
POSTGRES = "postgresql://localhost/events"
COMMAND_TIMEOUT_S = 120
FOR_A_SHELL = frozenset("|&;<>()$`\\*?[#~%\n")
"""A command with one of them is not only words."""
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
"""As a shell takes it before the words of a command."""
SAID_BY_JAVA = re.compile(r"^WARNING: Using incubator modules.*\n", re.MULTILINE)
"""Some versions of Java say this when Spark starts them."""


class Difference(Exception):
    """Something did not do what the page says."""


def compare(place: str, expected: str, got: str) -> None:
    """Raise `Difference` unless what was printed is what the page shows."""
    if not doctest.OutputChecker().check_output(expected, got, doctest.ELLIPSIS):
        raise Difference(f"{place}: the page shows\n{expected}\nbut what is printed is\n{got}")


class PageRunner:
    """Runs the blocks of one page."""

    def __init__(self, page: Path, servers: Mapping[str, str], forking: Forking | None) -> None:
        self.page, text = page, page.read_text(encoding="utf-8")
        for shown, address in servers.items():
            text = text.replace(shown, address)
        self.blocks = blocks(text)
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.forking = forking

    def run(self) -> None:
        """Run all of them."""
        for number, block in enumerate(self.blocks):
            following = self.blocks[number + 1] if number + 1 < len(self.blocks) else None
            if block.file_name is not None:
                self._save(block, block.file_name)
            elif block.language == "python":
                self._execute(block, following)
            elif block.language == "console":
                self._command(block)

    def _save(self, block: Block, name: str) -> None:
        Path(name).write_text(block.text, encoding="utf-8")
        importlib.invalidate_caches()
        importlib.import_module(name.removesuffix(".py"))

    def _execute(self, block: Block, following: Block | None) -> None:
        # The blank lines make tracebacks and warnings name the page's own lines.
        code = compile("\n" * (block.line - 1) + block.text, str(self.page), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, self.names)
        if following is not None and following.language == "text" and following.answers_previous:
            compare(f"{self.page}, line {block.line}", following.text, printed.getvalue())

    def _command(self, block: Block) -> None:
        for command, expected in commands(block):
            words, environment = without_assignments(shlex.split(command))
            if self.forking is None or FOR_A_SHELL & set(command) or words[:1] != ["transactional"]:
                printed = printed_in_shell(command)
            else:
                printed = self.forking.run(words, Path.cwd(), {**os.environ, **environment}).printed
            compare(f"{self.page}, line {block.line}: $ {command}", expected, SAID_BY_JAVA.sub("", printed))


def without_assignments(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """The words of a command, and the variables that are set before them."""
    environment = dict[str, str]()
    while words and (found := ASSIGNMENT.fullmatch(words[0])):
        environment[found[1]] = found[2]
        words = words[1:]
    return words, environment


def printed_in_shell(command: str) -> str:
    """What a command prints, errors included."""
    done = subprocess.run(
        command,
        shell=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    return done.stdout


def main(forking: Forking | None = None) -> None:
    """The command line. `forking` runs the commands that need no shell."""
    sys.path.insert(0, os.getcwd())
    try:
        shown = {"BOOTSTRAP": ADDRESS, "REGISTRY": REGISTRY, "POSTGRES": POSTGRES}
        servers = {address: os.environ.get(name, address) for name, address in shown.items()}
        PageRunner(Path(sys.argv[1]), servers, forking).run()
    except Difference as difference:
        raise SystemExit(str(difference)) from None


if __name__ == "__main__":
    main()
