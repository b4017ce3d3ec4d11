"""What is read of Avro records: as fastavro reads them, whatever is damaged, and by whatever schema."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random

import pytest

from tests.unit.spouts.avro.differential import compared, compared_pair
from tests.unit.spouts.avro.drawing import Drawn, by_fastavro, decoded, read_of, written
from transactional.arrow.zones import naive_times_in


@pytest.mark.parametrize("seed", range(20))
def test_records_are_read_as_by_fastavro(seed: int) -> None:
    drawn = Drawn(Random(seed))
    schema = drawn.schema()
    payloads, reader = written(schema, [drawn.value(schema) for _ in range(30)]), read_of(schema)
    assert decoded(schema, payloads, reader) == [by_fastavro(each, schema, reader) for each in payloads]


def test_exactly_those_that_are_damaged_are_at_fault() -> None:
    done, bad = compared(0, 1_000)
    assert done // 10 < bad < done


def test_another_schema_reads_what_the_specification_says() -> None:
    found = [compared_pair(seed) for seed in range(60)]
    assert 0 < sum(bad for _, bad in found) < sum(done for done, _ in found) // 2


def test_arrays_and_maps_come_in_blocks_of_which_some_have_sizes() -> None:
    """Those are written as the negative number of items, and how many bytes they take; here -2 in 4, then 1 in 2."""
    fields = [{"name": "a", "type": {"type": "array", "items": "int"}}, {"name": "n", "type": "int"}]
    schema = {"type": "record", "name": "R", "fields": fields}
    payloads = [bytes([3, 4, 2, 4, 2, 6, 0, 14]), bytes([2, 2, 1, 2, 4, 0, 16]), bytes([0, 18])]
    expected = [{"a": [1, 2, 3], "n": 7}, {"a": [1, 2], "n": 8}, {"a": [], "n": 9}]
    assert [by_fastavro(each, schema) for each in payloads] == expected
    assert decoded(schema, payloads, schema) == expected
    assert decoded(schema, payloads, {**schema, "fields": fields[1:]}) == [{"n": each["n"]} for each in expected]


@pytest.mark.parametrize(("zone", "hour"), [(None, 12), ("UTC", 12), ("Europe/Berlin", 10)])
def test_local_times_are_in_the_zone_that_the_topology_names(zone: str | None, hour: int) -> None:
    at = {"type": "long", "logicalType": "local-timestamp-micros"}
    schema = {"type": "record", "name": "R", "fields": [{"name": "at", "type": at}]}
    payloads = written(schema, [{"at": datetime(2026, 7, 1, 12)}])  # noqa: DTZ001
    with naive_times_in(zone):
        assert decoded(schema, payloads, schema) == [{"at": datetime(2026, 7, 1, hour, tzinfo=UTC)}]
