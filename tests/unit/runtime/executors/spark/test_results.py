"""What tasks send to the driver, by Spark or by a file: all of it, in order, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.runtime.executors.spark.results import RESULT_BYTES, ResultFile, ResultFiles, unpack


def attempt(txid: int, attempt_id: int) -> TransactionAttempt:
    return TransactionAttempt(TxId(txid), AttemptId(attempt_id))


SMALL, LARGE = b"x" * 100, b"x" * RESULT_BYTES


def test_what_is_large_goes_by_a_file_and_what_is_small_does_not(tmp_path: Path) -> None:
    results = ResultFiles(tmp_path)
    sent = [results.pack(attempt(1, 1), items) for items in ([SMALL, 1], [LARGE, 2], [3], [LARGE])]
    assert [type(each) for each in sent] == [bytes, ResultFile, bytes, ResultFile]
    assert len(list(tmp_path.iterdir())) == 2
    assert unpack(sent) == [SMALL, 1, LARGE, 2, 3, LARGE]
    assert not list(tmp_path.iterdir()), "what was read is of no use any more"


@pytest.mark.parametrize("has_folder", [True, False])
def test_where_no_file_can_be_spark_carries_everything(tmp_path: Path, *, has_folder: bool) -> None:
    results = ResultFiles(tmp_path / "gone" if has_folder else None)
    sent = results.pack(attempt(1, 1), [LARGE])
    assert isinstance(sent, bytes)
    assert unpack([sent]) == [LARGE]


def test_a_disk_that_is_full_leaves_no_part_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fills_the_disk(path: Path, data: bytes) -> int:
        with path.open("xb") as file:
            file.write(data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fills_the_disk)
    assert unpack([ResultFiles(tmp_path).pack(attempt(1, 1), [LARGE])]) == [LARGE]
    assert not list(tmp_path.iterdir())


def test_two_runs_of_one_task_do_not_write_one_file(tmp_path: Path) -> None:
    results = ResultFiles(tmp_path, bytes_min=0)
    first, again = results.pack(attempt(1, 1), ["first"]), results.pack(attempt(1, 1), ["again"])
    assert unpack([first]) == ["first"]
    assert unpack([again]) == ["again"]


def test_what_an_attempt_has_left_is_forgotten_and_nothing_of_others(tmp_path: Path) -> None:
    results = ResultFiles(tmp_path, bytes_min=0)
    lost = results.pack(attempt(1, 1), ["lost"])
    others = [results.pack(attempt(*numbers), [numbers]) for numbers in ((1, 12), (11, 1), (2, 3))]
    results.delete(attempt(1, 1))
    assert unpack(others) == [(1, 12), (11, 1), (2, 3)]
    with pytest.raises(FileNotFoundError):
        unpack([lost])
    ResultFiles(None).delete(attempt(1, 1))
