"""The relay and the Kafka sink, simulated: deaths, stopped publishers, unknown outcomes; and wrong variants of them."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.unit.runtime.publishing.publishing_world import RATES, World, simulate, simulated_clients
from tests.unit.runtime.publishing.wrong_publishing import WRONG

SEEDS = range(4, 16)
SEEDS_OF_WRONG = range(43, 150)
"""They begin where each wrong variant is soon found out."""


def test_every_record_of_a_committed_transaction_is_seen_once() -> None:
    reached = sum((simulate(seed) for seed in SEEDS), Counter[str]())
    others = {
        *("a producer is fenced", "a leader is fenced", "a publication is tried again", "a transaction times out"),
        *("an init completes a prepared commit", "a copy of the store is refused"),
        *("a rewind is finished", "a rewind is begun again", "a rewind is fenced"),
    }
    assert {*RATES, *others} <= {*+reached}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_variants_are_found_out(wrong: str) -> None:
    for seed in SEEDS_OF_WRONG:
        world = World(seed)
        with simulated_clients(world) as patch:
            WRONG[wrong](patch, world)
            try:
                world.run()
            except Exception:
                return
    pytest.fail(f"{wrong} was not found out in {len(SEEDS_OF_WRONG)} worlds")
