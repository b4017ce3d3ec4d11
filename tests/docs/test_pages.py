"""What the pages say is done: their code runs and prints what they show, their commands and links exist."""

from __future__ import annotations

import ast
import functools
import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import typer.main

from tests.docs.forking import Forking, of_a_new_process
from tests.docs.pages import ROOT, Block, anchors, blocks, code_words, commands, links, name_of, pages
from tests.docs.run_page import ADDRESS, POSTGRES, REGISTRY
from tests.integration.postgres import postgres_server, url_of
from tests.tidy.files import our_files
from tests.tidy.rooms import ROOMS
from transactional.operations.cli.main import app

PAGE_TIMEOUT_S = 100
SERVERS_TIMEOUT_S = 400
NO_JAVA = "/there/is/no/java/on/this/page"
SPARK = re.compile(
    r"""master(=|\s)["']?(local|spark:)|pyspark|^\$ transactional run (?!.*--master none)""", re.MULTILINE
)
LANGUAGES = {"python", "text", "console", "bash", "mermaid", "sql"}
PATHS = re.compile(
    r"(transactional|spouts|state|examples|tests|tools|docs|bench)/[\w./*-]*|[\w-]+\.(md|toml|lock)|Makefile"
)
OPERATORS = {"|", "&", "&&", ";", ">"}
"""Words of a shell that end a command, or its options."""
USERS_FILES = {"transactional.toml"}
"""Files that a user makes."""


def to_run(page: Path) -> list[Block]:
    """The blocks of a page that are run."""
    return [block for block in blocks(page.read_text(encoding="utf-8")) if block.language in ("python", "console")]


def needs(page: Path) -> set[str]:
    """The servers that a page's blocks need."""
    code = "\n".join(block.text for block in to_run(page))
    servers = (
        *(("kafka", ADDRESS in code), ("registry", REGISTRY in code), ("postgres", POSTGRES in code)),
        ("spark", SPARK.search(code)),
    )
    return {marker for marker, found in servers if found}


def environment_of_pages() -> dict[str, str]:
    """The variables for a page."""
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PYTHONPATH": str(ROOT), "PATH": programs, "NO_COLOR": "1"}


@pytest.fixture(scope="module")
def forking() -> Iterator[Forking]:
    """Runs pages and commands; all that they import is imported once."""
    forking, process = of_a_new_process()
    yield forking
    process.communicate()


def run(page: Path, folder: Path, timeout_s: int, **environment: str) -> None:
    """Run a page in an empty folder."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.docs.run_page", str(page)],
        cwd=folder,
        env={**environment_of_pages(), **environment},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"{name_of(page)}\n{done.stdout}\n{done.stderr}"


def marked(page: Path) -> object:
    """A page as a parameter, marked with the servers that it needs."""
    return pytest.param(page, marks=[getattr(pytest.mark, server) for server in needs(page)], id=name_of(page))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("page", [marked(page) for page in pages() if to_run(page) and not needs(page)])
def test_a_page_runs(page: Path, tmp_path: Path, forking: Forking) -> None:
    """Without a JVM: where one is started after all, it is not found."""
    done = forking.run(["run_page", str(page)], tmp_path, {**environment_of_pages(), "JAVA_HOME": NO_JAVA})
    assert done.code == 0, f"{name_of(page)}\n{done.printed}"


@pytest.mark.timeout(SERVERS_TIMEOUT_S + 20)
@pytest.mark.sampled(3)
@pytest.mark.parametrize("page", [marked(page) for page in pages() if needs(page)])
def test_a_page_runs_with_servers(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    environment = {"BOOTSTRAP": request.getfixturevalue("kafka_broker").bootstrap} if "kafka" in needs(page) else {}
    if "registry" in needs(page):
        environment["REGISTRY"] = request.getfixturevalue("schema_registry").url
    with ExitStack() as servers:
        if "postgres" in needs(page):
            environment["POSTGRES"] = url_of(servers.enter_context(postgres_server()))
        run(page, tmp_path, SERVERS_TIMEOUT_S, **environment)


# --- commands -------------------------------------------------------------------------------------------------------


def make_targets() -> set[str]:
    """The targets of the Makefile."""
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@functools.cache
def options_of() -> dict[str, set[str]]:
    """The commands of `transactional`, each with its options."""
    group = typer.main.get_command(app)
    subcommands: dict[str, typer.core.TyperCommand] = getattr(group, "commands")  # noqa: B009 - not in typer's types
    return {
        name: {"--help", *(option for leaf in leaves(command) for each in leaf.params for option in each.opts)}
        for name, command in subcommands.items()
    }


def leaves(command: typer.core.TyperCommand) -> list[typer.core.TyperCommand]:
    """A command; of a group its commands."""
    within: dict[str, typer.core.TyperCommand] = getattr(command, "commands", {})
    return list(within.values()) or [command]


def wrong(command: str) -> str | None:
    """What is wrong with a shown command; None when it exists, or is none of ours. The rest of a pipe is not read."""
    words = [*itertools.takewhile(lambda word: word not in OPERATORS, shlex.split(command, comments=True))]
    words = [word for word in words if not re.fullmatch(r"[A-Z_]+=.*", word)]
    program, *arguments = words
    if program == "make":
        missing = {word for word in arguments if "=" not in word} - make_targets()
        return f"no such target: {', '.join(missing)}" if missing else None
    if Path(program).name == "transactional" and arguments and arguments != ["--help"]:
        known = options_of().get(arguments[0])
        given = {word.split("=")[0] for word in arguments if re.match(r"--?[a-z]", word)}
        return f"no such command or option: {command}" if known is None or given - known else None
    if Path(program).name.startswith("python") and "-m" in arguments:
        module = arguments[arguments.index("-m") + 1].split(".")
        ours = module[0] in ("transactional", "spouts", "state", "sinks", "examples", "bench", "tests")
        there = ROOT.joinpath(*module).with_suffix(".py").exists() or ROOT.joinpath(*module, "__main__.py").exists()
        return f"no module {'.'.join(module)}" if ours and not there else None
    return None


def test_every_command_exists() -> None:
    shown = [
        (name_of(page), block.line, command)
        for page in pages()
        for block in blocks(page.read_text(encoding="utf-8"))
        if block.language in ("bash", "console")
        for command, _ in commands(block)
    ]
    assert len(shown) > 10
    assert [f"{name}:{line}: {what}" for name, line, command in shown if (what := wrong(command))] == []


def test_every_command_named_in_a_sentence_exists() -> None:
    named = [
        (name_of(page), word)
        for page in pages()
        for word in code_words(page.read_text(encoding="utf-8"))
        if re.match(r"(make|transactional|python3? -m) [a-z]", word)
    ]
    assert len(named) > 10
    assert [f"{name}: {what}" for name, word in named if (what := wrong(word))] == []


@pytest.mark.parametrize(
    "command",
    ["make nothing", "transactional fly", "transactional run x:y --fast", "python -m transactional.nothing"],
)
def test_a_command_that_does_not_exist_is_found(command: str) -> None:
    assert wrong(command) is not None


# --- links, files and names -----------------------------------------------------------------------------------------


def broken(page: Path, target: str) -> str | None:
    """What is wrong with a link; None when it leads somewhere inside of the repository, or out of it."""
    if target.startswith(("http://", "https://", "mailto:")):
        return None
    path, _, fragment = target.partition("#")
    there = (page.parent / path).resolve() if path else page
    if not there.exists():
        return f"{name_of(page)}: no {target}"
    if fragment and fragment not in anchors(there.read_text(encoding="utf-8")):
        return f"{name_of(page)}: no heading #{fragment} in {name_of(there)}"
    return None


def test_every_link_leads_somewhere() -> None:
    found = [(page, target) for page in pages() for target in links(page.read_text(encoding="utf-8"))]
    assert len(found) > 30
    assert [text for page, target in found if (text := broken(page, target))] == []


def test_a_broken_link_is_found() -> None:
    page = ROOT / "README.md"
    assert broken(page, "docs/nowhere.md") == "README.md: no docs/nowhere.md"
    assert broken(page, "README.md#nowhere") == "README.md: no heading #nowhere in README.md"


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        seen.add(page)
        targets = (target.partition("#")[0] for target in links(page.read_text(encoding="utf-8")))
        local = {
            (page.parent / target).resolve() for target in targets if target.endswith(".md") and "://" not in target
        }
        waiting += [other for other in local - seen if other.exists()]
    assert [name_of(page) for page in pages() if page not in seen] == []


def test_every_file_that_is_named_exists() -> None:
    named = [
        (page, word)
        for page in pages()
        for word in code_words(page.read_text(encoding="utf-8"))
        if PATHS.fullmatch(word.partition("::")[0]) and word not in USERS_FILES
    ]
    assert len(named) > 50
    missing = [
        f"{name_of(page)}: {word}"
        for page, word in named
        if not any(ROOT.glob(word.rstrip("/"))) and not beside(page, word)
    ]
    assert missing == []


def beside(page: Path, word: str) -> bool:
    """Whether a file is one that stands next to the page."""
    return (page.parent / word).exists()


def definitions() -> dict[str, set[str]]:
    """Every class of the packages and its attributes; under the empty name all functions."""
    known: dict[str, set[str]] = {"": set()}
    for package in ("transactional", "spouts", "state", "sinks", "examples"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef):
                    known[""].add(node.name)
                elif isinstance(node, ast.ClassDef):
                    known.setdefault(node.name, set()).update(attributes(node))
    return known


def attributes(node: ast.ClassDef) -> set[str]:
    """Methods, annotated and assigned names of a class, and the attributes that its methods set."""
    names = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    for each in ast.walk(node):
        match each:
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                names.add(name)
    return names


def test_every_method_and_function_that_is_named_exists() -> None:
    """`Coordinator.handle`, `plan_stages()`: a name that was changed in the code is changed in the pages."""
    known = definitions()
    named = [(name_of(page), word) for page in pages() for word in code_words(page.read_text(encoding="utf-8"))]
    wrong_names = []
    checked = 0
    for page, word in named:
        if match := re.match(r"([A-Z]\w+)\.([a-z_]\w*)\b", word):
            checked += match[1] in known
            if match[1] in known and match[2] not in known[match[1]]:
                wrong_names.append(f"{page}: {word}")
        elif match := re.match(r"([a-z_]\w+)\(", word):
            checked += 1
            if match[1] not in known[""] and not hasattr(__builtins__, match[1]):
                wrong_names.append(f"{page}: {word}")
    assert checked > 20
    assert wrong_names == []


def test_the_rooms_in_architecture_are_those_of_the_layering_test() -> None:
    text = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w/]+)/` \| ([^|]*) \| [^|]+ \|$", text, re.MULTILINE)
    shown = {room: tuple(tuple(_folders(place)) for place in order.split(" < ")) for room, order in rows}
    assert shown == {room: order for room, order in ROOMS.items() if room != "doors"}


def _folders(place: str) -> Iterator[str]:
    """The folders of one place in the order of a room."""
    yield from ("." if name == "its own files" else name.strip("`") for name in place.split(", "))


def section(page: str, title: str) -> str:
    """The text of a page from a heading to the next one of the same level."""
    return (ROOT / page).read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_folders_in_contributing_are_those_of_the_repository() -> None:
    lines = re.findall(r"^(\w+/(?: +\w+/)*) ", section("CONTRIBUTING.md", "Code layout"), re.MULTILINE)
    folders = {path.relative_to(ROOT).parts[0] for path in our_files() if path.parent != ROOT}
    assert {folder.rstrip("/") for line in lines for folder in line.split()} == {
        name for name in folders if name[0] != "."
    }


def test_the_folders_of_tests_are_those_of_the_repository() -> None:
    shown = set(re.findall(r"`(?:tests/)?(\w+)/`", section("docs/explanation/tests.md", "Where a test lies")))
    assert shown == {path.parent.name for path in (ROOT / "tests").glob("*/*.py")}


def test_every_block_says_what_it_is_in() -> None:
    unknown = [
        f"{name_of(page)}:{block.line}: {block.language or '(none)'}"
        for page in pages()
        for block in blocks(page.read_text(encoding="utf-8"))
        if block.language not in LANGUAGES
    ]
    assert unknown == []
