"""One world: a random program, a change between two of its runs, and what must have come of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tests.changes.kind import SAME, Kind
from tests.changes.kinds import COUNTED
from tests.changes.places import Place
from tests.changes.program import Branch, Program, Source
from tests.changes.world import ENDINGS, World
from transactional.core.ports import StateKind
from transactional.errors import TransactionalError

NAMES = ("web", "app", "shop")


def random_program(kinds: Sequence[Kind], random: Random, *, is_small: bool = False) -> Program:
    """One that all the changes can be made to; a small one has no more than that takes."""
    every = ({"window": ""} if is_small else {}) | _needs(kind.every for kind in kinds)
    of_program, of_first = _needs(kind.program for kind in kinds), _needs(kind.suited for kind in kinds)
    least = max(kind.streams for kind in kinds)
    is_trident = next(
        (kind.is_trident for kind in kinds if kind.is_trident is not None), least > 1 or random.random() < 0.5
    )
    streams = NAMES[: random.randint(least, least if is_small else 3)] if is_trident else NAMES[:1]
    first, second = (replace(_branch(name, streams, is_trident, random), **every) for name in ("first", "second"))
    program = Program(
        tuple(Source(name, name) for name in streams),
        (replace(first, **of_first), second),
        is_trident=is_trident,
        is_opaque=random.random() < 0.5,
        parallelism=random.choice((1, 2)),
        take=4 if is_small else random.choice((1, 2, 4)),
        pending=random.choice((1, 2)),
        has_letters=random.random() < 0.4,
    )
    if least > 1:
        program = program.with_first(reads=streams)
    program = replace(program, **of_program)
    if program.has_letters:
        at, fails_on = random.choice((0, 1)), random.choice((2, 3, 5))
        branches = tuple(replace(each, fails_on=fails_on * (i == at)) for i, each in enumerate(program.branches))
        return replace(program, branches=branches)
    by_count = any(branch.window == "count" for branch in program.branches)
    is_told = of_program or any(kind.name == "windows by count in place of time" for kind in kinds)
    # A transactional state that is ahead keeps what the program of before has made of that transaction.
    is_same = all(kind.result == SAME for kind in kinds)
    if is_same and not (program.is_opaque or by_count or is_told):
        return replace(program, kind=random.choice((StateKind.OPAQUE, StateKind.TRANSACTIONAL)))
    return program


def _needs(needs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """All of them."""
    return {name: value for each in needs for name, value in each.items()}


def _branch(name: str, streams: tuple[str, ...], is_trident: bool, random: Random) -> Branch:  # noqa: FBT001
    windows = ("", "", "tumbling", "sliding", "count", *(["session"] if is_trident else []))
    reads = tuple(random.sample(streams, random.randint(1, len(streams))))
    key = random.choice((("word",), ("word", "place")))
    lets = random.choice(("all", "even", "odd"))
    return Branch(name, reads, key, COUNTED, lets=lets, window=random.choice(windows))


def live(kinds: Sequence[Kind], seed: int, place: Place, *, is_small: bool = False) -> World:
    """A run that may end in the middle, the changes, and all the rest.

    What is refused for good is tried first, then what makes no difference is changed at once, then one by one what is
    accepted.
    """
    with closing(place):
        return _lived(kinds, seed, place, is_small=is_small)


def _lived(kinds: Sequence[Kind], seed: int, place: Place, *, is_small: bool) -> World:
    random = Random(f"{' '.join(kind.name for kind in kinds)} {seed}")
    now = random_program(kinds, random, is_small=is_small)
    world = World(seed, place, is_small=is_small)
    # With letters an error of a step would be that of a tuple; without them none is skipped.
    no = "while processing" if now.has_letters else "before a write with letters"
    ending = random.choice([each for each in ENDINGS if each != no])
    world.write(now)
    world.run(now)
    if not is_small or ending != "drained":
        world.write(now)
        world.run(now, ending=ending, before=random.randint(0, 3))
    world.write(now)
    for kind in kinds:
        if final := kind.final(place.name):
            after = kind.change(now, random)
            refuses(world, after, f"TX403 {kind.refused}")
            if place.name in kind.places:
                refuses(world, after, final, accept=True, is_fenced=kind.by_target)
            refuses_unsent(world, kind, now, after)
    for kind in kinds:
        now = now if kind.refused else kind.change(now, random)
    accepted = [kind for kind in kinds if kind.refused and not kind.final(place.name)]
    if accepted and any(not kind.refused for kind in kinds):
        world.run(now)
    for kind in accepted:
        now = accepts(world, kind, now, random)
    for _ in range(2 if any(branch.window for branch in now.branches) else 1):
        world.write_end(now)
        world.run(now)
    world.check(now)
    loses = any(kind.refused and not kind.final(place.name) for kind in kinds) or now.prefix != Program.prefix
    if now.has_letters and not (loses or now.sinks) and not any(each.fails_on and each.window for each in now.branches):
        world.replay_letters(now)
        world.check(now.mended())
    return world


def accepts(world: World, kind: Kind, before: Program, random: Random) -> Program:
    """The program with a change that is refused, and goes on once it is accepted."""
    after = kind.change(before, random)
    world.write(after)
    refuses(world, after, f"TX403 {kind.refused}")
    refuses_unsent(world, kind, before, after)
    if kind.in_flight and world.has_in_flight(before.sources[0].name):
        refuses(world, after, kind.in_flight, accept=True)
        world.run(before)
    world.run(after, accept=True)
    return after


def refuses_unsent(world: World, kind: Kind, before: Program, after: Program) -> None:
    """Refuse a change of a sink while its records wait in the outbox, and send them by the program as it was."""
    if kind.unsent:
        world.run_without_publishing(before)
        refuses(world, after, f"TX100 {kind.unsent}", accept=True)
        world.run(before)


def refuses(world: World, program: Program, why: str, *, accept: bool = False, is_fenced: bool = False) -> None:
    """A start that is refused with such a code and words, in one line, and has written nothing, or fences alone."""
    for publishing in program.sinks:
        world.topics.sink(publishing)
    before, (code, _, words) = world.whole(with_tables=not is_fenced), why.partition(" ")
    with pytest.raises(TransactionalError) as refused:
        world.run(program, accept=accept)
    line = str(refused.value)
    assert refused.value.code == code
    assert words in line
    assert "\n" not in line
    assert world.whole(with_tables=not is_fenced) == before
