"""Names the files of the repository that the processes of a part load: the test process, and all that it starts.

A line in the virtual environment, which Python's `site` runs, has each process begin to do so that inherits the
variable; in all others it does nothing. A file is named before its code runs, so a process that is killed has named
all that it ran. This module is imported before everything else, and imports nothing that it does not need.
"""

from __future__ import annotations

import os
import sys
from typing import Any

VARIABLE = "PROOF_LOADED_FILES"
"""The name of the file that the names of loaded files are appended to."""
LINE = f'import os; "{VARIABLE}" in os.environ and __import__("tests.proof.loading").proof.loading.name_files()\n'
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


def name_files() -> None:
    """Append each file whose code this process executes from now on to the file that the environment names."""
    names, loaded = os.environ[VARIABLE], set[str]()

    def append(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "exec":
            return
        file = getattr(arguments[0], "co_filename", "")
        if file in loaded or not file.startswith(_ROOT) or file.startswith(sys.prefix):
            return
        loaded.add(file)
        try:
            with open(names, "a", encoding="utf-8") as output:
                output.write(f"{file.removeprefix(_ROOT)}\n")
        except OSError:
            pass  # The part has ended, and the folder of what it wrote is deleted.

    sys.addaudithook(append)
