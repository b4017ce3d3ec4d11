"""House style as tests: sizes, docstrings, annotations, banned names and their replacement, texts that may not land."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.tidy import files
from tests.tidy.files import ROOT, our_files, text_files
from tests.tidy.parsing import Looked, nodes_of, parsed

CODE = ("transactional", "spouts", "state", "sinks", "verifier", "examples", "bench", "tests")
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500
FILE_LINES_WISHED = 300

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Ban:
    """A call that may stand only in the files and folders named, and what to use elsewhere."""

    instead: str
    allowed_in: tuple[str, ...] = ()


CLOCK = ("transactional/runtime/engine/clock.py",)
SPARK = (
    "transactional/runtime/executors/spark/cluster_check.py",
    "transactional/runtime/executors/spark/dataframes.py",
    "transactional/runtime/executors/spark/executor.py",
    "transactional/runtime/spark/session.py",
    "state/delta/catalog.py",
)

# By the call as it is written. `.collect` is that method without arguments, on whatever stands before it.
BANNED_CALLS = {
    "time.sleep": Ban("wait for an event, or ask the Clock", CLOCK),
    "time.time": Ban("ask the Clock", CLOCK),
    # An object store's own clock would cost each Delta commit a request; delta-rs takes this machine's, too.
    "time.time_ns": Ban(
        "ask the Clock",
        (*CLOCK, "sinks/delta/entries.py", "state/delta/write/entry.py", "state/delta/log/rebuilding.py"),
    ),
    "datetime.now": Ban("ask the Clock", CLOCK),
    ".collect": Ban("toArrow() under a bound that is checked", SPARK),
    "print": Ban(
        "a logger, or sys.stdout in a command", ("transactional/operations/cli/main.py", "examples/", "bench/")
    ),
}

# Put together, so that this file does not hold what it looks for.
BANNED_TEXT = {
    "a note to self, which belongs in an issue": re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b"),
    "the address of a package registry": re.compile(
        r"(?:py" + r"pi|python" + r"hosted|mav" + r"en|npm" + r"js|cra" + r"tes)[\w-]*\.(?:org|io|com)\b"
    ),
    "a folder of one machine": re.compile(r"(?<![\w.])/wo" + r"rk(?![\w-])|\.\./sha" + r"red\b"),
}


def python_files() -> list[Path]:
    return files.python_files(CODE)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions_of(source: str) -> Iterator[Function]:
    return (node for node in nodes_of(source) if isinstance(node, Function))


def length_of(function: Function) -> int:
    """Lines from `def` to the end, decorators and comments included in between."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def unannotated(function: Function) -> list[str]:
    """The arguments of a function without annotation, and `return` if that has none."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    starred = [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
    missing = [each.arg for each in [*named, *starred] if each.annotation is None and each.arg not in ("self", "cls")]
    return missing + (["return"] if function.returns is None else [])


def written_name(call: ast.Call) -> str:
    """`time.sleep` of `time.sleep(1)`, `.collect` of `frame.where(x).collect()`, empty for what has no name."""
    match call.func:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id="gc"), attr=name):
            return f"gc.{name}"
        case ast.Attribute(attr="collect") if not call.args and not call.keywords:
            return ".collect"
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return f"{owner}.{name}"
        case ast.Attribute(value=ast.Attribute(attr=owner), attr=name):
            return f"{owner}.{name}"
    return ""


def command_lines(tree: ast.Module) -> set[int]:
    """The lines under `if __name__ == "__main__":`, where a module is a command and may print."""
    commands = (node for node in tree.body if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test))
    return {line for node in commands for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def banned_imports(nodes: list[Looked]) -> Iterator[tuple[int, str]]:
    """`from time import sleep` would hide a banned name: line and name."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def banned_uses(name: str, source: str) -> list[str]:
    """Every banned call or import in one file, with what to use instead."""
    tree, nodes = parsed(source), nodes_of(source)
    calls = [(node.lineno, written_name(node)) for node in nodes if isinstance(node, ast.Call)]
    calls = [(line, used) for line, used in calls if used != "print" or line not in command_lines(tree)]
    return [
        f"{name}:{line}: {used}: use instead: {ban.instead}"
        for line, used in sorted([*calls, *banned_imports(nodes)])
        if (ban := BANNED_CALLS.get(used)) is not None and not name.startswith(ban.allowed_in)
    ]


def banned_texts(name: str, text: str) -> list[str]:
    """Every line of a text that holds what may not land."""
    held = {what: pattern for what, pattern in BANNED_TEXT.items() if pattern.search(text)}
    return [
        f"{name}:{number}: {what}: {line.strip()[:100]}"
        for number, line in enumerate(text.splitlines(), 1)
        for what, pattern in held.items()
        if pattern.search(line)
    ]


def test_no_function_is_long() -> None:
    long = [
        f"{name_of(path)}:{function.lineno}: {function.name} has {length_of(function)} lines"
        for path in python_files()
        for function in functions_of(path.read_text())
        if length_of(function) > FUNCTION_LINES_MAX
    ]
    assert not long, "\n".join([f"functions of more than {FUNCTION_LINES_MAX} lines:", *long])


def test_no_file_is_long() -> None:
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in python_files()}
    wished = [f"{name}: {lines}" for name, lines in sorted(lengths.items()) if lines > FILE_LINES_WISHED]
    longest = max(lengths.values())
    assert longest <= FILE_LINES_MAX, "\n".join(
        [f"a file has more than {FILE_LINES_MAX} lines; all of more than {FILE_LINES_WISHED}:", *wished]
    )


def test_every_module_says_what_lives_there() -> None:
    silent = [name_of(path) for path in python_files() if not ast.get_docstring(parsed(path.read_text()))]
    assert not silent, "modules without a docstring"


def test_every_function_is_annotated() -> None:
    bare = [
        f"{name_of(path)}:{function.lineno}: {function.name}: {', '.join(missing)}"
        for path in python_files()
        for function in functions_of(path.read_text())
        if (missing := unannotated(function))
    ]
    assert not bare, "\n".join(["without annotation:", *bare])


def test_no_banned_name_is_used() -> None:
    found = [text for path in python_files() for text in banned_uses(name_of(path), path.read_text())]
    assert not found, "\n".join(found)


def test_no_banned_text_lands() -> None:
    found = [text for path, content in text_files() for text in banned_texts(name_of(path), content)]
    assert not found, "\n".join(found)


def locked_versions() -> dict[str, str]:
    """Version by name of everything in requirements.lock."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return dict(re.findall(r"^([\w.-]+)==(\S+)", "\n".join(lines), flags=re.MULTILINE))


def direct_dependencies() -> dict[str, str]:
    """What pyproject.toml asks for, extras and groups included: specifier by name, names as the lock writes them."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = pyproject["project"]
    several = [*project["optional-dependencies"].values(), *pyproject["dependency-groups"].values()]
    asked = project["dependencies"] + [each for some in several for each in some]
    parts = [re.fullmatch(r"([\w.-]+)(?:\[[^]]*\])?(.*)", each) for each in asked]
    found = {re.sub(r"[-_.]+", "-", part.group(1)).lower(): part.group(2) for part in parts if part is not None}
    return {name: version for name, version in found.items() if name != project["name"]}


def test_the_lock_holds_every_dependency_in_its_range() -> None:
    locked = locked_versions()
    assert set(direct_dependencies()) <= set(locked), "run `make lock`"
    outside = {name for name, range_ in direct_dependencies().items() if locked[name] not in SpecifierSet(range_)}
    assert outside == set(), "run `make lock`"


def test_lower_bounds_are_versions_that_are_tried() -> None:
    """All tests run with the lock's versions; a bound below them would promise what nobody has seen."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named = [each for extra in ("postgres", "redis", "examples") for each in extras[extra]]
    asked = [Requirement(each) for each in [*project["dependencies"], *named]]
    locked = locked_versions()
    untried = []
    for each in asked:
        [lower] = [Version(one.version.removesuffix(".*")) for one in each.specifier if one.operator in (">=", "==")]
        tried = Version(locked[canonicalize_name(each.name)])
        if tried.release[: len(lower.release)] != lower.release:
            untried.append(f"{each}: {tried} is tried")
    assert untried == []


def test_the_lock_is_names_versions_and_hashes_alone() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    allowed = re.compile(r"#.*|[\w.-]+==\S+ (?:; [^\\]+ )?\\|    --hash=sha256:[0-9a-f]{64}(?: \\)?")
    assert [line for line in lines if not allowed.fullmatch(line)] == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import time\ntime.sleep(1)", "time.sleep"),
        ("from time import sleep", "time.sleep"),
        ("import datetime\ndatetime.datetime.now()", "datetime.now"),
        ("frame.where('a').collect()", ".collect"),
        ("print('x')", "print"),
    ],
)
def test_a_banned_name_is_reported(source: str, expected: str) -> None:
    assert f": {expected}: use instead: " in "\n".join(banned_uses("state/sample.py", source))


def test_a_banned_name_is_left_alone_where_it_belongs() -> None:
    assert banned_uses("transactional/runtime/engine/clock.py", "import time\ntime.sleep(1)") == []
    assert banned_uses("examples/words.py", "print('x')") == []
    assert banned_uses("state/sample.py", "if __name__ == '__main__':\n    print('x')") == []
    assert banned_uses("state/sample.py", "collector.collect(row)") == []


@pytest.mark.parametrize(
    "line",
    [
        "# TO" + "DO later",
        "https://py" + "pi.org/simple",
        "see repo1.mav" + "en.org",
        "cd /wo" + "rk/main",
        "`/wo" + "rk`",
        "../sha" + "red/design.md",
    ],
)
def test_a_banned_text_is_reported(line: str) -> None:
    assert len(banned_texts("README.md", line)) == 1


def test_words_that_only_look_banned_are_left_alone() -> None:
    fine = ["the worker's folder $SPARK_HOME/work/app-1", "docs/workers.md", "org.apache.maven", "home/workspace"]
    assert [banned_texts("README.md", line) for line in fine] == [[], [], [], []]


def test_sizes_and_annotations_are_measured_right() -> None:
    source = "def one(a, *, b: int) -> None:\n    pass\n\ndef two(self, *rest: int): pass\n"
    one, two = functions_of(source)
    assert (length_of(one), unannotated(one)) == (2, ["a"])
    assert (length_of(two), unannotated(two)) == (1, ["return"])


@pytest.mark.parametrize("has_git", [True, False])
def test_what_a_run_leaves_behind_is_not_looked_at(tmp_path: Path, *, has_git: bool) -> None:
    """A table's log names its files by their whole path, which may look like a folder of one machine."""
    ours = {"README.md": "Words", "transactional/__init__.py": "", ".gitignore": "/data/\n__pycache__/\n*.db-wal\n"}
    left = {"data/count/_delta_log/0.json": "/wo" + "rk/clone", "store.db-wal": "", "state/__pycache__/a.py": ""}
    for name, text in (ours | left).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    if has_git:  # git's own hooks name their repository in the environment
        outside = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        for arguments in (["init", "-q"], ["add", *ours]):
            subprocess.run(["git", *arguments], cwd=tmp_path, env=outside, check=True)
    assert {path.relative_to(tmp_path).as_posix() for path in our_files(tmp_path)} == set(ours)
