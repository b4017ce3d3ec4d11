"""Which modules go to executors by value, and that a process without them can do with what was sent."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest
from pyspark import cloudpickle as spark_cloudpickle

from transactional.runtime.sending.by_value import send_by_value, sending_by_value


class Neighbours:
    """Modules beside a script: this process can import them, another one can't."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch
        patch.syspath_prepend(folder)

    def module(self, name: str, code: str) -> ModuleType:
        path = self.folder / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(code))
        importlib.invalidate_caches()
        module = importlib.import_module(name)
        self.patch.delitem(sys.modules, name)  # the patch takes it out again at the end
        sys.modules[name] = module
        return module


@pytest.fixture
def neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Neighbours:
    return Neighbours(tmp_path, monkeypatch)


def sent(value: object) -> list[str]:
    with sending_by_value(value) as modules:
        return [module.__name__ for module in modules]


def elsewhere(data: bytes) -> str:
    """What a function that was pickled answers in another process."""
    code = f"import pickle; print(pickle.loads({data!r})(20))"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def by_spark(value: object) -> bytes:
    data: bytes = spark_cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return data


def test_a_module_goes_by_value_with_those_that_it_uses(neighbours: Neighbours) -> None:
    neighbours.module("ours_deepest", "def one() -> int:\n    return 1\n")
    neighbours.module("ours_helpers", "import ours_deepest\ndef add(n):\n    return n + ours_deepest.one()\n")
    neighbours.module("ours_unused", "def never() -> None: ...\n")
    bolts: Any = neighbours.module(
        "ours_bolts", "import ours_unused\nfrom ours_helpers import add\ndef twice(n):\n    return add(n) * 2\n"
    )
    with sending_by_value([bolts.twice]) as modules:
        assert [module.__name__ for module in modules] == ["ours_bolts", "ours_helpers", "ours_deepest"]
        assert elsewhere(cloudpickle.dumps(bolts.twice)) == "42"
        assert elsewhere(by_spark(bolts.twice)) == "42"
    assert elsewhere(cloudpickle.dumps(bolts.twice)) == "ModuleNotFoundError: No module named 'ours_bolts'"
    assert elsewhere(by_spark(bolts.twice)) == "ModuleNotFoundError: No module named 'ours_bolts'"


def test_a_bolts_class_and_those_that_it_inherits_from_go_by_value(neighbours: Neighbours) -> None:
    neighbours.module("ours_base", "from transactional import BasicBolt\nclass Base(BasicBolt): ...\n")
    bolts: Any = neighbours.module(
        "ours_class", "from ours_base import Base\nclass Mine(Base):\n    def execute(self, row, collector): ...\n"
    )
    assert sent({"bolt": bolts.Mine()}) == ["ours_class", "ours_base"]


def test_what_is_installed_pythons_or_our_own_goes_by_name(neighbours: Neighbours) -> None:
    from sqlalchemy import select

    from spouts import MemoryTransactionalSpout
    from transactional.model.groupings import Grouping

    installed: Any = neighbours.module("site-packages.installed_there", "def same(n):\n    return n\n")
    assert sent([textwrap.dedent, select, Grouping, MemoryTransactionalSpout, installed.same, len, 3]) == []


def test_a_module_that_can_not_be_pickled_goes_by_name_and_the_others_by_value(neighbours: Neighbours) -> None:
    locked: Any = neighbours.module(
        "ours_locked", "import threading\nLOCK = threading.Lock()\ndef same(n):\n    with LOCK:\n        return n\n"
    )
    plain: Any = neighbours.module("ours_plain", "def same(n):\n    return n\n")
    assert sent([locked.same, plain.same]) == ["ours_plain"]
    assert not {"ours_locked", "ours_plain"} & set(cloudpickle.list_registry_pickle_by_value())


def test_what_was_sent_by_value_before_stays_so(neighbours: Neighbours) -> None:
    """The command line's own module is, whatever runs in between."""
    module: Any = neighbours.module("ours_named", "def same(n):\n    return n\n")
    assert send_by_value(module)
    assert not send_by_value(module)
    assert sent([module.same]) == []
    assert elsewhere(cloudpickle.dumps(module.same)) == "20"
