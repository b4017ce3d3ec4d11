"""What is read of Avro records: as fastavro reads them, whatever is damaged, and by whatever schema."""

from __future__ import annotations

from random import Random

import pytest

from tests.unit.spouts.avro.differential import compared, compared_pair
from tests.unit.spouts.avro.drawing import Drawn, by_fastavro, decoded, written


@pytest.mark.parametrize("seed", range(20))
def test_records_are_read_as_by_fastavro(seed: int) -> None:
    drawn = Drawn(Random(seed))
    schema = drawn.schema()
    payloads = written(schema, [drawn.value(schema) for _ in range(30)])
    assert decoded(schema, payloads) == [by_fastavro(each, schema) for each in payloads]


def test_exactly_those_that_are_damaged_are_at_fault() -> None:
    done, bad = compared(0, 1_000)
    assert done // 10 < bad < done


def test_another_schema_reads_what_the_specification_says() -> None:
    found = [compared_pair(seed) for seed in range(60)]
    assert 0 < sum(bad for _, bad in found) < sum(done for done, _ in found) // 2
