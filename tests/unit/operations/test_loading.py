"""A module of a user under the name of one of our packages is told, before it fails in some other way."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from transactional.errors import ConfigError
from transactional.operations.loading import load_topology, open_store, refuse_hidden_packages

PROGRAM = """
from spouts import JsonTranslator, MemoryTransactionalSpout, PartitionedTransactionalSpout

from transactional import BasicBolt
class Parse(BasicBolt):
    def process(self, tuple, collector): ...
class Numbers(PartitionedTransactionalSpout):
    def partitions(self): return []
def forgotten(): return build
def build():
    return {call}
"""
CALLS = {
    "Parse()": r"class Parse .*execute'?: define execute\(self, tuple, collector\) \(PLACE\)$",
    "Numbers()": r"define emit_.*_batch\(self, partition, metadata\), next_batch\(self, partition, previous\) \(",
    "JsonTranslator('n long', on_eror='')": r"'on_eror' — did you mean 'on_error'\?; it takes: .* \(PLACE\)$",
    "MemoryTransactionalSpout([], 'n long')": r"missing 1 .*: 'take'; it takes: partitions, fields, take \(PLACE\)$",
}
"""What a user calls, and what is said of it."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a user works in. What the test puts on the path goes again."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("file", ["state.py", "spouts.py", "verifier.py", "state/__init__.py"])
def test_a_file_that_hides_a_package_of_ours_is_named(folder: Path, file: str) -> None:
    path = folder / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    name = file.split("/")[0].removesuffix(".py")
    with pytest.raises(ConfigError) as raised:
        load_topology("words:build")
    assert str(raised.value) == f"{path} hides the package {name!r} of transactional: give it another name"


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_does_not_fit_is_explained(folder: Path, call: str) -> None:
    module = f"program_{list(CALLS).index(call)}"
    (folder / f"{module}.py").write_text(PROGRAM.replace("{call}", call))
    with pytest.raises(ConfigError, match=CALLS[call].replace("PLACE", rf"{module}\.py:11")):
        load_topology(f"{module}:build")


def test_a_function_is_no_topology(folder: Path) -> None:
    (folder / "returns_build.py").write_text(PROGRAM)
    with pytest.raises(
        ConfigError, match=r"^returns_build:forgotten is the function build, not .*: call it, build\(\)$"
    ):
        load_topology("returns_build:forgotten")


def test_a_wrong_call_in_a_library_stays_what_it_is(folder: Path) -> None:
    (folder / "of_a_library.py").write_text("import json\ndef build(): return json.loads(3)\n")
    with pytest.raises(TypeError, match="must be str"):
        load_topology("of_a_library:build")


def test_a_store_is_not_looked_for_in_a_users_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "state.py").write_text("")
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(ConfigError, match=r"state\.py hides the package 'state'"):
        open_store(f"sqlite:///{folder}/store.db")


def test_the_metadata_of_packages_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_store(f"sqlite:///{folder}/store.db").close()
    monkeypatch.setattr("transactional.model.plumbing.entry_points.entry_points", None)
    open_store(f"sqlite:///{folder}/store.db").close()


def test_another_checkout_is_called_what_it_is(folder: Path) -> None:
    for name in (
        "transactional/operations/loading.py",
        "spouts/__init__.py",
        "state/__init__.py",
        "verifier/__init__.py",
    ):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("")
    with pytest.raises(ConfigError) as raised:
        load_topology("words:build")
    assert str(raised.value).startswith(f"{folder} is another copy of transactional than the one that runs, ")
    assert "give it another name" not in str(raised.value)


def test_a_folder_of_data_and_a_file_behind_ours_hide_nothing(folder: Path) -> None:
    (folder / "state").mkdir()
    (folder / "spouts.py").write_text("")
    sys.path.insert(0, str(folder / "elsewhere"))
    sys.path.append(str(folder))
    refuse_hidden_packages()
