"""Values as text: what JSON has no word for."""

from __future__ import annotations

import json

import pytest

from transactional.operations.queries.texts import to_json_value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_is_text(value: float) -> None:
    """JSON has no word for it: a parser of a browser refuses the one that Python writes."""
    assert json.dumps(to_json_value([{"of": value}]), allow_nan=False) == f'[{{"of": "{value}"}}]'
