"""What the tiers have caught: the report of a call, and the table of what `make check` does not see, which is kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tests.mutants.planting import Variant
from tests.mutants.running import Result, Results, Tier
from tests.resuming import say, write_whole
from tests.simulation.test_mutants import WRONG

TABLE: Final = Path(__file__).with_name("caught.md")
_HEAD: Final = (
    "# What `make check` does not see\n\n"
    "Of the variants in `variants/` those that no test of `make check` catches, with the files with servers that do:\n"
    "`test` by the cases that `make test` selects of them (`--sample`), `all` only by the same files in full.\n"
    "Written by `python -m tests.mutants --tier all`; what was not tried again keeps its line.\n\n"
    "| variant | of | caught by | in |\n|---|---|---|---|\n"
)


def report(chosen: Sequence[Variant], results: Results, until: Tier) -> int:
    """Say how many each tier has caught, what survives, and what is left. The exit code: 0 once every variant is
    caught, or need not be."""
    known = {each.name: last for each in chosen if (last := results.last(each)) is not None}
    caught = {name: last for name, last in known.items() if last.caught_by}
    by_tier = {tier: [last for last in caught.values() if last.tier is tier] for tier in Tier}
    none = [each for each in chosen if each.name in known and each.name not in caught]
    say(
        f"\n{len(by_tier[Tier.CHECK])} of {len(known)} are caught by `make check`, {len(by_tier[Tier.TEST])} by `make "
        f"test`, {len(by_tier[Tier.ALL])} by the same files in full, {len(none)} survive"
    )
    for result in by_tier[Tier.ALL]:
        say(f"    `make test` misses {result.name}, which is caught by {', '.join(result.caught_by)}")
    for each in none:
        shown = f"{each.shows}{_cut(known[each.name])}" + (f" It may: {each.lives}" if each.lives else "")
        say(f"    {each.name} ({each.file}), tried up to `{known[each.name].tier}`: {shown}")
    if left := [each.name for each in chosen if results.next_tier(each) in until.until]:
        say(f"{len(left)} are left, the same command continues with them: {', '.join(left)}")
    say(f"beside these, tests/simulation/test_mutants.py plants {len(WRONG)} wrong parts, and sees each found")
    return 1 if left or any(not each.lives for each in none) else 0


def write_table(every: Iterable[Variant], results: Results, file: Path = TABLE) -> None:
    """Write a line for each variant that `make check` misses and whose tier is known; those of others stay as they are,
    as long as there is such a variant."""
    rows, earlier = list[str](), rows_of(file)
    for variant in every:
        last = results.last(variant)
        if last is None or results.next_tier(variant) is not None:
            rows += [earlier[variant.name]] if variant.name in earlier else []
        elif last.tier is not Tier.CHECK:
            rows.append(_row(variant, last))
    write_whole(file, _HEAD + "".join(f"{row}\n" for row in rows))


def rows_of(file: Path = TABLE) -> dict[str, str]:
    """The lines of the table by the names of the variants."""
    lines = file.read_text(encoding="utf-8").removeprefix(_HEAD).splitlines() if file.exists() else []
    return {line.split("|")[1].strip(): line for line in lines}


def _row(variant: Variant, last: Result) -> str:
    tier = str(last.tier) if last.caught_by else f"none: {variant.lives}" if variant.lives else "none"
    return f"| {variant.name} | {variant.file} | {tier}{_cut(last)} | {', '.join(last.files) or '-'} |"


def _cut(result: Result) -> str:
    return " (cut after five minutes)" if result.is_cut and not result.caught_by else ""
