"""The relay and the Kafka sink, simulated: deaths, stopped publishers, unknown outcomes; and wrong variants of them."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

from sinks.kafka.record_encoding import KEY, VALUE
from sinks.kafka.sink import KafkaSink
from tests.unit.runtime.publishing.publishing_world import (
    NAMES,
    RATES,
    TOPOLOGY,
    World,
    new_sinks,
    release_lease,
    simulate,
    simulated_clients,
)
from tests.unit.runtime.publishing.wrong_publishing import WRONG
from transactional.core.ports import PublishedRecords
from transactional.core.store.outbox import Publication
from transactional.errors import SinkUnavailable
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.names import SINKS
from transactional.runtime.publishing.settling import fence_removed_sinks

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


def test_a_sink_that_has_left_the_topology_is_fenced() -> None:
    world = World(0)
    world.faults_end = True
    with simulated_clients(world):
        world.act()
        leader, store = world.leader, world.store
        assert leader is not None
        stored = {SINKS: {name: {"kind": KafkaSink.kind, "cluster": "cluster"} for name in NAMES}}
        store.record_start(leader.lease, stored)
        release_lease(store)
        remaining = {"alerts": new_sinks()["alerts"]}
        remaining["alerts"].prepare()
        fingerprint = {SINKS: {"alerts": stored[SINKS]["alerts"]}}
        lease = store.acquire(TOPOLOGY, fingerprint, owner="next", lease_ms=1_000, accept_changes=True)
        fence_removed_sinks(remaining, fingerprint, store, lease)
        attempt = TransactionAttempt(TxId(1), AttemptId(2))
        group = [PublishedRecords(Publication("run", attempt), pa.table({KEY: [b"ann"], VALUE: [b"{}"]}))]
        leader.sinks["alerts"].publish(group)
        with pytest.raises(SinkUnavailable) as failure:
            leader.sinks["copy"].publish(group)
        assert failure.value.is_fenced


@pytest.mark.long("a sample of worlds is seen above")
@pytest.mark.parametrize("first_seed", range(100, 400, 100))
def test_every_record_is_seen_once_in_many_worlds(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 100):
        simulate(seed)


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
