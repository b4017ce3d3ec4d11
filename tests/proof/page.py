"""docs/proof.md, which is made of docs/proof.json."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from tests.proof.entries import Entry, Proof, kind_of
from tests.proof.promises import PROMISES, promise_of

HEAD = """# The proof

How far the long proofs of the [guarantees](guarantees.md) cover the code. `make proof` runs parts of them, for 40
minutes or `BUDGET=2h`: first those that have failed, then those that have never passed, then those that are older than
the code they stand on, oldest first. A part stands on the modules that its processes had loaded when it passed, as far
as its tests can reach them by their imports, and on `requirements.lock`. A change elsewhere leaves it current.
`docs/proof.json` says for each part over which code, when and with which seed it has passed, what it has covered, how
long it took and which files it stands on; `make proof` and `make docs` write this page from it."""
PROMISE_COLUMNS = "| promise | parts that have passed | current | last proved in full | at commit |"
COLUMNS = "| proof | parts | current | older | failed or never run | oldest pass | processors | covered |"
PART_S_MAX = 180
"""Of the processors; a part that takes longer is to be split."""


def page_of(proof: Proof) -> str:
    """The text of the page."""
    kinds = defaultdict[str, list[Entry]](list)
    for name, entry in proof.parts.items():
        kinds[kind_of(name)] += [entry] if entry and entry.passed else []
    every = Counter(map(kind_of, proof.parts))
    failed = [name for name, entry in proof.parts.items() if entry and not entry.passed]
    passed, older = sum(map(len, kinds.values())), sum(proof.stale.values())
    said = (
        f"At commit `{proof.commit}` ({proof.at[:10]}) there were {len(proof.parts)} parts: {passed - older} were "
        f"current, {older} older than the code they stand on, {len(failed)} had failed, and "
        f"{len(proof.parts) - passed - len(failed)} had never run. Those that have passed took "
        f"{sum(entry.processors_s for each in kinds.values() for entry in each) / 60:.0f} minutes of processors."
    )
    rows = [row_of(kind, kinds[kind], every[kind], proof.stale.get(kind, 0)) for kind in sorted(kinds)]
    long = [name for name, entry in proof.parts.items() if entry and entry.processors_s > PART_S_MAX]
    table = "\n".join([COLUMNS, "|---" + "|---:" * 6 + "|---|", *rows])
    promises = "\n".join([PROMISE_COLUMNS, "|---" + "|---:" * 4 + "|", *promise_rows(proof)])
    lists = listed("Failed", failed), listed("Longer than three minutes", long)
    return "\n\n".join([HEAD, said, promises, *lists[0], table, *lists[1]]) + "\n"


def promise_rows(proof: Proof) -> list[str]:
    """When each promise was last proved: when the oldest pass of its parts was, once all of them have passed."""
    entries, older = defaultdict[str, list[Entry | None]](list), Counter[str]()
    for name, entry in proof.parts.items():
        entries[promise_of(kind_of(name))].append(entry if entry and entry.passed else None)
    for kind, number in proof.stale.items():
        older[promise_of(kind)] += number
    rows = list[str]()
    for promise in filter(entries.__contains__, PROMISES):
        passed = [entry for entry in entries[promise] if entry]
        oldest = min(passed, key=lambda entry: entry.at, default=None)
        is_whole = len(passed) == len(entries[promise])
        proved = (oldest.at[:10], f"`{oldest.commit}`") if oldest and is_whole else ("never", "")
        numbers = f"{len(passed)} of {len(entries[promise])}", len(passed) - older[promise]
        rows.append(f"| {' | '.join(map(str, (promise, *numbers, *proved)))} |")
    return rows


def row_of(kind: str, passed: list[Entry], parts: int, older: int) -> str:
    """Of the parts of one function or file how many are what, and what those that have passed have covered."""
    file, _, function = kind.removeprefix("tests/proof/").partition("::")
    what = f"`{file}`: {function.removeprefix('test_').replace('_', ' ') or 'short ones'}"
    oldest = min((entry.at[:10] for entry in passed), default="")
    minutes = sum(entry.processors_s for entry in passed) / 60
    counts = sum((Counter(entry.counts) for entry in passed), Counter[str]())
    covered = ", ".join(f"{number:,} {each}" for each, number in sorted(counts.items()))
    numbers = (parts, len(passed) - older, older, parts - len(passed))
    return f"| {' | '.join(map(str, (what, *numbers, oldest, f'{minutes:.1f} min', covered)))} |"


def listed(title: str, names: Sequence[str]) -> list[str]:
    """A title and a list; nothing without names."""
    return [f"{title}:", "\n".join(f"- `{name}`" for name in names)] if names else []
