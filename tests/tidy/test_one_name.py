"""One name, one thing: no two classes of the framework have the same name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable

from tests.tidy.files import ROOT, python_files
from tests.tidy.parsing import parsed

PACKAGES = ("transactional", "spouts", "state", "sinks")
"""Not `verifier`: it has its own idea of the same things, so as not to share their mistakes."""


def homonyms(sources: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The files that define a class, for each name of which there are several."""
    homes = defaultdict[str, list[str]](list)
    for name, source in sources:
        for node in parsed(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(name)
    return {name: files for name, files in homes.items() if len(files) > 1}


def test_no_two_classes_have_one_name() -> None:
    files = python_files(PACKAGES)
    assert not homonyms((path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in files)


def test_two_classes_of_one_name_are_reported() -> None:
    sources = [("a.py", "class Step: ...\nclass _Own: ..."), ("b.py", "class Step: ...\nclass _Own: ...")]
    assert homonyms(sources) == {"Step": ["a.py", "b.py"]}
