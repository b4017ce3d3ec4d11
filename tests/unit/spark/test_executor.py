"""The executor on Spark: what is reported of a job that did not succeed."""

from __future__ import annotations

from transactional.spark.executor import _first_lines

JOB = """\
An error occurred while calling z:org.apache.spark.api.python.PythonRDD.runJob.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 6.0 failed 1 times, most recent \
failure: Lost task 0.0 in stage 6.0 (TID 9) (127.0.0.2 executor 1): java.io.IOException: No space left on device
\tat java.base/sun.nio.ch.FileDispatcherImpl.write0(Native Method)

Driver stacktrace:
"""


def test_its_first_line_is_the_reason_not_the_call_of_the_gateway() -> None:
    first, *rest = _first_lines(Exception(JOB)).splitlines()
    assert first.startswith("org.apache.spark.SparkException: Job aborted")
    assert first.endswith("No space left on device")
    assert rest == ["Driver stacktrace:"]
    assert _first_lines(Exception("one line")) == "one line"
