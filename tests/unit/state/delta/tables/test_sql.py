"""How values combine in SQL, by the words that a table has declared."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from state.delta.tables.sql import DATA_FUSION, SPARK_SQL, Dialect, build_aggregate_sql, build_combine_sql
from transactional.errors import ProtocolError

WAYS: dict[str, Callable[..., str]] = {
    "two values": lambda how, dialect: build_combine_sql(how, "b", "d", "long", dialect),
    "rows": lambda how, dialect: partial(build_aggregate_sql, is_part=False)(how, "d", "txid", "long", dialect),
    "rows of a part": lambda how, dialect: partial(build_aggregate_sql, is_part=True)(
        how, "d", "txid", "long", dialect
    ),
}


@pytest.mark.parametrize("dialect", [DATA_FUSION, SPARK_SQL], ids=["datafusion", "spark"])
@pytest.mark.parametrize("way", WAYS)
def test_a_word_that_is_not_known_is_no_aggregate_of_the_engine(way: str, dialect: Dialect) -> None:
    assert len({WAYS[way](how, dialect) for how in ("sum", "min", "max", "last")}) == 4
    with pytest.raises(ProtocolError, match="'avg' is not known"):
        WAYS[way]("avg", dialect)
