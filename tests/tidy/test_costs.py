"""The record of what tests cost, the budgets that it is held to, and what a run says of costs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.costs import BUDGETS_S, NEW_FILE_S, Cost, Record, Tier, read_costs, write_costs
from tests.tidy.files import our_files

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("tier", BUDGETS_S)
def test_the_tests_of_a_command_are_within_its_budget(tier: Tier) -> None:
    """Whoever adds seconds takes others away: `make test-all` writes the record anew."""
    record, paths = read_costs(), [path for path in our_files(ROOT / "tests") if path.name.startswith("test_")]
    names = [path.relative_to(ROOT).as_posix() for path in paths]
    proofs = {name for name, path in zip(names, paths, strict=True) if "mark.proof" in path.read_text("utf-8")}
    files = [name for name in names if name in record.files or name not in proofs]
    assert record.total_s(files, tier) <= BUDGETS_S[tier]


def test_a_file_without_a_record_is_not_for_free(tmp_path: Path) -> None:
    write_costs({"tests/b.py": Cost(0.04, 1.0, 2.0), "tests/a.py": Cost(1, 2, 3)}, tmp_path / "costs.toml")
    record = read_costs(tmp_path / "costs.toml")
    assert record == Record({"tests/a.py": Cost(1, 2, 3), "tests/b.py": Cost(0.0, 1.0, 2.0)})
    assert record.total_s(["tests/a.py", "tests/new.py"], Tier.TEST) == 2 + NEW_FILE_S
    assert read_costs(tmp_path / "none.toml").total_s(["tests/a.py"], Tier.REST) == NEW_FILE_S


BUSY = """
    import subprocess, sys, time
    import pytest

    def use(seconds):
        until = time.process_time() + seconds
        while time.process_time() < until: pass

    @pytest.mark.kafka
    def test_with_a_server():
        code = "import time\\nwhile time.process_time() < 0.3: pass\\nprint(flush=True)\\ninput()"
        program = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        program.stdout.readline()
        global alive
        alive = program

    @pytest.mark.kafka
    def test_ends_it():
        with alive: alive.communicate(b"\\n")

    def test_alone(): use(0.1)

    @pytest.mark.long("test_alone")
    def test_long(): use(0.2)
"""


def test_what_files_cost_is_recorded_by_command(
    inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A server's seconds count while it lives, for the test in which it used them; a file twice as dear is red."""
    record = tmp_path / "costs.toml"
    monkeypatch.setattr("tests.costs.RECORD", record)
    monkeypatch.setattr("tests.costs.read_costs.__defaults__", (record,))
    monkeypatch.setattr("tests.costs.write_costs.__defaults__", (record,))
    inner.makepyfile(test_busy=BUSY)
    inner.runpytest_inprocess("--quiet", "--sample", "--write-costs").assert_outcomes(passed=3, deselected=1)
    inner.runpytest_inprocess("--quiet", "--sample", "--without-servers", "--write-costs").assert_outcomes(
        passed=1, deselected=3
    )
    inner.runpytest_inprocess("--quiet", "--slice", "1/1", "--write-costs").assert_outcomes(passed=1, deselected=3)
    cost = read_costs(record).files["test_busy.py"]
    assert cost.check_s >= 0.1
    assert cost.test_s >= cost.check_s + 0.3
    assert cost.rest_s >= 0.2
    write_costs({"test_busy.py": Cost(0.0, 0.1, 0.0), "test_cheap.py": Cost(0, 9, 0)}, record)
    inner.makepyfile(test_cheap="def test_cheap(): pass")
    monkeypatch.setattr("tests.costs.SPARE_S", 0.1)
    for option, expected in ("--hold-costs", pytest.ExitCode.TESTS_FAILED), ("--sample", pytest.ExitCode.OK):
        done = inner.runpytest_inprocess("--quiet", "--sample", option)
        assert done.ret == expected
        line = r"test_busy\.py took 0\.\d s of processors; its limit is 0\.3 s, twice what tests/costs\.toml says"
        assert bool(re.search(line, done.stdout.str())) == bool(expected)
