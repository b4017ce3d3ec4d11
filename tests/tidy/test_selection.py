"""What `make check`, `make test` and a slice of `make test-all` run: the sample, and what it leaves out."""

from __future__ import annotations

import re

import pytest

from tests.selection import SLICES, Slice
from tests.servers import starts_programs


def test_a_server_is_started_by_a_test_that_is_marked_alone(inner: pytest.Pytester) -> None:
    for name in ("initdb", "java", "redis-server"):
        program = inner.mkdir(name) / name
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    inner.makepyfile("""
        import subprocess
        import pytest

        def test_other(): subprocess.run(["true"], check=True)
        def test_database(): subprocess.run(["initdb/initdb"], check=True)
        def test_cache(): subprocess.run(["redis-server/redis-server"], check=True)
        def test_broker(): subprocess.run(["java/java"], check=True)

        @pytest.mark.postgres
        def test_marked_database(): subprocess.run(["initdb/initdb"], check=True)

        @pytest.mark.redis
        def test_marked_cache(): subprocess.run(["redis-server/redis-server"], check=True)

        @pytest.mark.kafka
        @pytest.mark.parametrize("program", ["java", "initdb"])
        def test_marked_broker(program): subprocess.run([f"{program}/{program}"], check=True)
    """)
    done = inner.runpytest_subprocess("--quiet")  # this test's own process has the rule for itself
    done.assert_outcomes(passed=4, failed=4)
    done.stdout.fnmatch_lines_random(
        [
            "*::test_database starts initdb: it needs @pytest.mark.postgres,*",
            "*::test_cache starts redis-server: it needs @pytest.mark.redis,*",
            "*::test_broker starts java: it needs @pytest.mark.kafka or @pytest.mark.registry or @pytest.mark.spark,*",
            "*::test_marked_broker?initdb? starts initdb: *",
        ]
    )


def test_each_nth_case_is_run_where_a_sample_will_do(inner: pytest.Pytester) -> None:
    cases = "@pytest.mark.parametrize('n', range(7))\n"
    some = f"@pytest.mark.sampled(3)\n{cases}def test_some(n): pass\n"
    table = f"@pytest.mark.sampled(3)\n@pytest.mark.parametrize('m', range(3))\n{cases}def test_table(m, n): pass\n"
    few = "@pytest.mark.sampled(9)\n@pytest.mark.parametrize('n', range(2))\ndef test_few(n): pass\n"
    marked = "import pytest\npytestmark = pytest.mark.sampled(2, tests=True)\n"
    tests = "".join(f"@pytest.mark.parametrize('n', range(2))\ndef test_{name}(n): pass\n" for name in "abcd")
    whole = "def test_e(): pass\ndef test_f(): pass\n@pytest.mark.long('test_e')\ndef test_g(): pass\n"
    inner.makepyfile(
        test_them=f"import pytest\n{cases}def test_all(n): pass\n{some}{table}{few}",
        test_file=marked + tests + whole,
        test_each=marked.replace(", tests=True", "") + whole,
    )
    sample = inner.runpytest_inprocess("--quiet", "--collect-only", "--sample").stdout.str()
    assert [n for n in range(7) if f"test_some[{n}]" in sample] == [0, 3, 6]
    assert {n for n in range(7) if f"test_table[{n}-" in sample} == set(range(7)), "each row"
    assert {m for m in range(3) if re.search(rf"test_table\[.-{m}\]", sample)} == set(range(3)), "each column"
    assert re.findall(r"test_few\[.\]", sample) == ["test_few[0]"], "one of each test"
    assert re.findall(r"test_([abcd]\[.\])", sample) == ["a[0]", "b[1]", "c[0]", "d[1]"]
    assert re.findall(r"(test_\w+\.py::test_[ef])\b", sample) == [
        "test_each.py::test_e",
        "test_each.py::test_f",
        "test_file.py::test_e",
    ]
    assert "test_g" not in sample, "another one catches the same"
    assert "25/51 tests collected (26 deselected)" in sample
    assert "51 tests collected" in inner.runpytest_inprocess("--quiet", "--collect-only").stdout.str()


def test_slices_share_what_the_sample_leaves_out(inner: pytest.Pytester) -> None:
    """Whole files, each in one slice; a test of Hypothesis is in the sample and in a slice."""
    left_out = "import pytest\n@pytest.mark.long('test_a')\ndef test_{name}(): pass\ndef test_a(): pass\n"
    inner.makepyfile(**{f"test_{name}": left_out.format(name=name) for name in "bcdef"})
    inner.makepyfile(
        test_g="from hypothesis import given, strategies\n@given(strategies.none())\ndef test_g(_): pass\n"
    )
    slices = []
    for number in range(1, 4):
        printed = inner.runpytest_inprocess("--quiet", "--collect-only", "--slice", f"{number}/3").stdout.str()
        assert f"slice {number} of 3: 2 tests" in printed
        slices.append(re.findall(r"::test_(\w)", printed))
    assert sorted(name for names in slices for name in names) == list("bcdefg")
    sample = inner.runpytest_inprocess("--quiet", "--collect-only", "--sample").stdout.str()
    assert re.findall(r"::test_(\w)", sample) == [*"aaaaa", "g"]


def test_a_slice_is_named_by_its_number_or_by_the_time() -> None:
    assert Slice.parse("3/8") == Slice(3, 8)
    day = [str(Slice.parse("auto", now_ms=hour * 3_600_000)) for hour in range(3 * SLICES)]
    assert day == [f"slice {hour // 3 + 1} of 8" for hour in range(24)]
    for wrong in "0/8", "9/8", "3", "3/", "a/b":
        with pytest.raises(pytest.UsageError, match=f"--slice {wrong}: write auto, or a part of the whole such as 3/8"):
            Slice.parse(wrong)


def test_check_leaves_out_servers_and_folders_of_programs(inner: pytest.Pytester) -> None:
    for folder in "tests/integration/delta", "tests/integration/faults", "tests/unit":
        (inner.path / folder).mkdir(parents=True)
        text = "raise ValueError" if "faults" in folder else "import pytest\ndef test_a(): pass\n"
        (inner.path / folder / "test_it.py").write_text(f"{text}\n@pytest.mark.redis\ndef test_b(): pass\n")
    done = inner.runpytest_inprocess("--quiet", "--without-servers")
    done.assert_outcomes(passed=2, deselected=2)
    assert [starts_programs(path) for path in ("tests/proof/a.py", "tests/integration/delta/a.py")] == [True, False]
