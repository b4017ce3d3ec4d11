"""The table of docs/howto/change.md, of the kinds of change that are tested."""

from __future__ import annotations

from tests.changes.kind import SAME, Kind
from tests.changes.kinds import KINDS

HEAD = "| what changes | the next start | with `--accept-changes` |\n|---|---|---|\n"


def table() -> str:
    """A row for each kind."""
    return HEAD + "".join(f"| {' | '.join(_row(kind))} |\n" for kind in KINDS)


def _row(kind: Kind) -> tuple[str, str, str]:
    result = "as without the change" if kind.result == SAME else kind.result
    if not kind.refused:
        return kind.name, f"works: {result}", ""
    if kind.for_good:
        return kind.name, "refused", f"refused, with {kind.for_good.partition(' ')[0]}"
    until = "; refused while a batch in flight has records of it" if kind.in_flight else ""
    until += "; refused while transactions wait to be published" if kind.unsent else ""
    until += "".join(f"; refused in {place.capitalize()}, with TX101" for place in kind.fixed)
    return kind.name, "refused", f"works: {result}{until}"
