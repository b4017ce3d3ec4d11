"""Which store's tables a start takes: another one's are refused, and a store that knows none takes the tables'."""

from __future__ import annotations

import pytest

from tests.unit.drivers import World
from transactional.errors import StoreMismatch


def test_a_table_that_was_created_for_another_store_is_refused_before_anything_is_written() -> None:
    world = World()
    world.counts.store_id = "other"
    with pytest.raises(StoreMismatch) as refused:
        world.run()
    [said] = str(refused.value).splitlines()
    [ours] = [topology.store_id for topology in world.store._topologies.values()]
    assert "committer 'counts': its table (memory=counts " in said
    assert "created for the topology in another store, with the id other; this one, HookedStore(), has the id" in said
    assert f"has the id {ours}: two stores may not lead the same tables. To do: run with the store" in said
    assert said.endswith("is no longer there, delete the table, to which nothing was ever written")
    assert (world.total.store_id, world.total.version) == (None, None)


def test_one_that_was_written_is_refused_also_by_a_store_that_knows_its_version() -> None:
    world = World()
    world.run()
    world.total.store_id = "other"
    versions = world.counts.version, world.total.version
    with pytest.raises(StoreMismatch, match=r"committer 'total'.*another store.*doctor --repair --journal\)$"):
        world.run()
    assert (world.counts.version, world.total.version) == versions


def test_a_store_that_has_none_takes_the_one_of_its_tables() -> None:
    """As one of an earlier release, or one that was repaired."""
    world = World()
    world.run()
    was = world.counts.store_id
    assert was is not None
    [topology] = world.store._topologies.values()
    topology.store_id, world.total.store_id = None, None
    world.run()
    assert topology.store_id == was
    assert world.total.store_id is None


def test_it_draws_one_where_the_tables_have_none() -> None:
    world = World()
    world.run()
    [topology] = world.store._topologies.values()
    topology.store_id = world.counts.store_id = world.total.store_id = None
    world.run()
    assert topology.store_id is not None
    assert (world.counts.store_id, world.total.store_id) == (None, None)


def test_tables_of_two_stores_are_refused() -> None:
    world = World()
    world.run()
    [topology] = world.store._topologies.values()
    topology.store_id, world.counts.store_id, world.total.store_id = None, "one", "another"
    with pytest.raises(StoreMismatch, match=r"'counts' and 'total': .* with the ids one and another"):
        world.run()
