"""The example of Avro, from a broker and a registry to a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples import avro_departures
from examples.avro_departures import RECORDS
from spouts.local_broker import LocalBroker
from spouts.local_registry import LocalRegistry

pytestmark = [pytest.mark.kafka, pytest.mark.registry]


def test_each_departure_is_counted_once(
    tmp_path: Path, kafka_broker: LocalBroker, schema_registry: LocalRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    avro_departures.main(kafka_broker.bootstrap, schema_registry.url, str(tmp_path))
    delays = [sum(n % 60 for n in range(RECORDS) if n % 3 == place) for place in range(3)]
    expected = [
        f"{carrier}: {delay} minutes late in all" for carrier, delay in zip(("AA", "BA", "UA"), delays, strict=True)
    ]
    assert capsys.readouterr().out.splitlines() == expected
