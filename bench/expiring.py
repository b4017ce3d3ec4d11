"""`python -m bench.expiring`: what rows that expire cost a commit, beside the same table whose rows stay.

Both have a million keys, each with a count and the time at which it was seen last. A transaction updates some of them;
where rows expire, it is a second later each time, and a hundredth of the table has not been seen for long enough.
Measured in turns, in one process: the processor time of the commit, and of it with the maintenance that follows.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import process_time

import pyarrow as pa

from state import DeltaMapState, SqlMapState
from state.delta.segments.folding import LogLayout
from transactional.attempt import AttemptId, TransactionAttempt, TxId
from transactional.facts import BatchFacts
from transactional.ports import Partials

AFTER_S = 100
LAYOUTS = ("merge", "log", "sqlite")
BEGIN_S = 1_000_000


def state_of(layout: str, folder: Path, *, expires: bool) -> DeltaMapState | SqlMapState:
    """An open, empty state."""
    column, after = ("at", f"{AFTER_S} seconds") if expires else (None, None)
    columns = ("key long", "count long, at timestamp")
    state: DeltaMapState | SqlMapState
    if layout == "sqlite":
        state = SqlMapState(f"sqlite:///{folder}/{expires}.db", "keys", *columns, expires=column, after=after)
    else:
        how = LogLayout(fold_after=10) if layout == "log" else layout
        state = DeltaMapState(folder / str(expires), *columns, layout=how, expires=column, after=after)
    state.open("bench/keys", TxId)
    return state


def seen(keys: pa.Array, seconds: pa.Array) -> Partials:
    """Keys that were seen once each, at these seconds."""
    at = pa.array([each * 1_000_000 for each in seconds.to_pylist()], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    table = pa.table({"key": keys, "count": pa.array([1] * len(keys), pa.int64()), "at": at})
    return Partials({"count": "sum", "at": "max"}, table)


def transactions(
    state: DeltaMapState | SqlMapState, keys: int, batch: int, count: int
) -> Iterator[tuple[float, float]]:
    """The first one fills the table; then the seconds of each commit, and of it with what follows."""
    for number in range(count + 1):
        attempt, now = TransactionAttempt(TxId(number + 1), AttemptId(number + 1)), BEGIN_S + number
        if number:
            first = number * batch
            part = seen(pa.array([(first + n) % keys for n in range(batch)]), pa.array([now] * batch))
        else:
            part = seen(pa.array(range(keys)), pa.array([BEGIN_S - AFTER_S + n % AFTER_S + 1 for n in range(keys)]))
        began = process_time()
        state.begin(attempt, BatchFacts(now * 1_000))
        state.merge(attempt, part)
        commit_s = process_time() - began
        state.tidy(attempt.txid, lambda: True)
        yield commit_s, process_time() - began


def main() -> None:
    """Measure in turns, and print what was found."""
    parser = argparse.ArgumentParser(prog="python -m bench.expiring", description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=20_000)
    parser.add_argument("--transactions", type=int, default=30)
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=LAYOUTS)
    arguments = parser.parse_args()
    for layout in arguments.layouts:
        with tempfile.TemporaryDirectory(prefix="expiring-") as folder:
            both = [state_of(layout, Path(folder), expires=expires) for expires in (False, True)]
            given = (arguments.keys, arguments.batch, arguments.transactions)
            stay, go = (list[tuple[float, float]]() for _ in both)
            for one, other in zip(*(transactions(state, *given) for state in both), strict=True):
                stay.append(one)
                go.append(other)
            for state in both:
                state.close()
        for place, what in enumerate(("commit", "commit and maintenance")):
            pairs = [after[place] / before[place] for before, after in zip(stay[1:], go[1:], strict=True)]
            mean = sum(each[place] for each in go[1:]) / sum(each[place] for each in stay[1:])
            ms = [1_000 * median(each[place] for each in times[1:]) for times in (stay, go)]
            print(
                f"{layout}, {what}: {ms[0]:.0f} ms where rows stay, {ms[1]:.0f} ms where they expire (medians); "
                f"pairs {min(pairs):.2f} … {median(pairs):.2f} … {max(pairs):.2f}, mean {mean:.2f} times",
                flush=True,
            )


if __name__ == "__main__":
    main()
