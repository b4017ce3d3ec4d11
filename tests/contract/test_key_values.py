"""A stateful bolt's state over every state: random histories with dead attempts end as a plain dict says."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.contract.places import place_of
from tests.contract.states import AnyState, Place, content
from transactional.core.ports import StateKind
from transactional.model.attempt import TransactionAttempt
from transactional.runtime.tasks.stateful import KeyValues

WORDS = ("cat", "dog", "owl", "", None)
KINDS = [StateKind.OPAQUE, StateKind.TRANSACTIONAL]
Model = dict[Any, int | None]


def worked(state: AnyState, attempt: TransactionAttempt, before: Model, random: Random, together: int = 1) -> Model:
    """One attempt, up to the write of its state; what there has to be afterwards. Checks what the bolt reads. Histories
    that are lived through `together` in one table have keys of their own."""
    values, model = KeyValues.of("count", state, attempt), dict(before)
    for number in [each for each in range(together) for _ in range(random.randrange(6))]:
        word = random.choice(WORDS)
        word = f"{number} {word}" if number else word
        match random.randrange(5 if state.declared.columns.deletes else 4):
            case 0:
                assert dict(values.items()) == model
            case 1:
                assert (word in values) is (word in model)
            case 4:
                model.pop(word, None)
                values.delete(word)
            case 2:
                model[word] = None
                values.put(word, None)
            case _:
                found = values.get(word, 0)
                assert found == model.get(word, 0)
                model[word] = (found or 0) + random.randrange(1, 9)
                values.put(word, model[word])
    state.put(attempt, values.changes)
    return model


def run_transactions(
    place: Place, kind: StateKind, random: Random, transactions: int, *, deletes: bool, together: int = 1
) -> None:
    """Transactions with dead attempts, which a transactional spout gives the same tuples as those that live."""
    state, model, number = place.state(kind=kind, deletes=deletes), Model(), 0
    for txid in range(1, transactions + 1):
        same = random.randrange(1_000_000)
        after = model
        for _ in range(random.choice((1, 1, 2, 3))):
            number += 1
            if random.random() < 0.2:
                state.close()
                state = place.state(kind=kind, deletes=deletes)
                place.fence(state, txid if after is not model else txid - 1, number)
                number += 1
            attempt = place.attempt(txid, number)
            assert state.is_replay(attempt) is (after is not model)
            seed = same if kind is StateKind.TRANSACTIONAL else random.randrange(1_000_000)
            after = worked(state, attempt, model, Random(seed), together)
            assert content(state) == after
            assert content(state, txid - 1) == model
        model = after
    state.close()


@pytest.mark.sampled(14)
@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_histories_with_dead_attempts_end_as_a_dict_does(place: Place, kind: StateKind, *, deletes: bool) -> None:
    """Storm row C11: of all states that a stateful bolt may have, with and without deleted keys."""
    random = Random(f"{place.engine}{kind}")
    run_transactions(place, kind, random, 8, deletes=deletes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ["memory", "sqlite", pytest.param("redis", marks=pytest.mark.redis)])
@pytest.mark.sampled(25)
@pytest.mark.parametrize("seed", range(25))
def test_many_histories(
    engine: str, kind: StateKind, seed: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with place_of(request, tmp_path, engine) as place:
        run_transactions(place, kind, Random(seed), 6, deletes=seed % 4 != 0)
