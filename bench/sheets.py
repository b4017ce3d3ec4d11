"""Tables of figures, made from the parts' files: the terminal and the page show the same ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench import append_sheets, gear_sheets, model, sink_sheets
from bench.scale_targets import scale_targets
from bench.targets import TIMES, Documents, ages, formatted, targets

MET = {True: "met", False: "**not met**", None: "-"}
TITLES = {"driver": "driver, Python", "jvm": "driver, JVM", "workers": "Python workers"}
RATIOS_OF = ("merge", "expert", "raw", "streaming", "ours-1", "ours-tuples", "ours-over-4")
PEERS = ("merge", "expert", "streaming")
RECIPES = {
    "merge": "Structured Streaming, MERGE",
    "expert": "Structured Streaming, delta-rs",
    "streaming": "Structured Streaming, windows",
    "ours-3": "ours on Spark",
    "ours-auto": "ours, `auto`",
}
"""The systems of the summary, and the names of their columns."""
WORKS = {"pairs": "count by key", "windows": "count by key and minute"}
"""The parts of the summary, and the names of their works."""
PLOTS = {"pairs": ("throughput", "latency"), "works": ("throughput",), "raw": ("throughput",)}
"""Of which parts which plots are drawn."""
TIMES_OF = {
    "own_ms": "coordinator's own work per transaction",
    "store_ms": "of it in the store's writes",
    "cpu_ms": "of it processor time",
    "planned_ms": "planned → committed",
}
NO_CLIFF = 0.95
"""So many times the better peer's throughput ours has in at least one round of every point."""
CONTESTS = ("pairs", "raw", "works", "bolts", "windows", "partitions")


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table: what it shows, the names of its columns, and its rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def summary_sheet(documents: Documents) -> Sheet:
    """The medians of every recipe that does the same work, and the throughput of `auto` against the quickest peer."""
    rows = []
    for part, title in WORKS.items():
        measured = {(each["batch_messages"], each["system"]): each for each in _summaries(part, documents)}
        for size in sorted({size for size, _ in measured}):
            cells = [_speed_and_p50(measured.get((size, system))) for system in RECIPES]
            ratios = [
                each["throughput"]["median"]
                for each in documents[part]["ratios"]
                if (each["system"], each["batch_messages"]) == ("ours-auto", size) and each["peer"] in PEERS
                if each["work"] == measured[size, "ours-auto"]["work"]
            ]
            rows.append((title, f"{size:,}", *cells, f"{formatted(min(ratios))} {TIMES}" if ratios else "-"))
    return Sheet("How fast", ("work", "messages a batch", *RECIPES.values(), "`auto` against the quickest peer"), rows)


def _speed_and_p50(summary: Mapping[str, Any] | None) -> str:
    if summary is None:
        return "-"
    return f"{summary['messages_per_second']['median']:,.0f} ({_ms(summary['p50_ms'])})"


def target_sheet(documents: Documents) -> Sheet:
    """Every target, and whether it was met."""
    rows = [(each.what, each.wanted, each.shown, MET[each.is_met]) for each in targets(documents)]
    return Sheet("Targets", ("what (batches in messages)", "target", "reached: min … median … max", ""), rows)


def speed_sheet(part: str, documents: Documents) -> Sheet:
    """Throughput and latency by work, batch size and system."""
    columns = ("work", "batch", "system", "1,000 messages/s", "p50", "p95", "p99", "phases, p50 in ms")
    rows = [
        (
            *(each["work"], f"{each['batch_messages']:,}", each["system"], _thousands(each["messages_per_second"])),
            *(_ms(each[name]) for name in ("p50_ms", "p95_ms", "p99_ms")),
            ", ".join(f"{name} {formatted(ms)}" for name, ms in each["phases_ms"].items() if ms >= 1),
        )
        for each in _summaries(part, documents)
    ]
    return Sheet(f"{part}: throughput, latency from planned to committed, phases", columns, rows)


def cost_sheet(part: str, documents: Documents) -> Sheet:
    """Bytes and memory by work, batch size and system."""
    columns = ("work", "batch", "system", "KiB written per batch", "driver, MiB", "its JVM, MiB", "Python workers, MiB")
    rows = [
        (
            *(each["work"], f"{each['batch_messages']:,}", each["system"], formatted(each["bytes_per_batch"] / 1024)),
            *(formatted(each["peaks_mib"].get(part_of)) for part_of in ("driver", "jvm", "workers")),
        )
        for each in _summaries(part, documents)
        if each.get("peaks_mib")
    ]
    return Sheet(f"{part}: what it costs", columns, rows)


def ratio_sheet(part: str, documents: Documents) -> Sheet:
    """How many times quicker ours is, round by round."""
    rows = [
        (
            *(each["work"], f"{each['batch_messages']:,}", each["system"], each["peer"], _spread(each["throughput"])),
            _spread(each["latency"]) if each["latency"] else "-",
        )
        for each in documents.get(part, {}).get("ratios", [])
        if each["peer"] in RATIOS_OF
    ]
    return Sheet(f"{part}: how many times quicker", ("work", "batch", "system", "against", "throughput", "p50"), rows)


def steady_sheet(documents: Documents) -> Sheet:
    """Thousands of transactions in one process."""
    steady = documents.get("steady", {})
    rows = [
        (
            f"peak memory over {int(number):,} transactions",
            ", ".join(f"{title} {formatted(peaks.get(part))} MiB" for part, title in TITLES.items()),
        )
        for number, peaks in steady.get("peaks_mib", {}).items()
    ]
    for name, title in TIMES_OF.items():
        if name in steady:
            rows.append((title, ", ".join(f"{percent} {formatted(ms)} ms" for percent, ms in steady[name].items())))
    if steady:
        speed = steady["transactions"] / steady["seconds"]
        batch = f"batches of {steady['batch_messages']}, {steady['in_flight']} in flight"
        rows.append((f"transactions a second, {batch}", formatted(speed)))
    return Sheet("One process over thousands of transactions", ("what", "measured"), rows)


def profile_sheet(documents: Documents) -> Sheet:
    """Where the processor time of a batch size goes, by part, and which functions have the most of it."""
    rows = []
    for each in documents.get("profile", {}).get("profiles", []):
        spent, size = each["profile"]["cpu_seconds"], f"{each['batch_messages']:,}"
        for part, title in TITLES.items():
            top = each["profile"].get(part, {}).get("top", {})
            functions = ", ".join(f"`{name}` {share:.0%}" for name, share in top.items())
            share = spent.get(part, 0) / max(sum(spent.values()), 0.001)
            rows.append((size, title, f"{share:.0%}", functions or "-"))
    columns = ("batch", "process", "of the processor time", "innermost functions, share of the process's samples")
    return Sheet("Where the time goes", columns, rows)


def table_sheet(documents: Documents) -> Sheet:
    """Transaction commits without Spark and broker, by size and age of their table."""
    tables = documents.get("tables", {})
    rows = [
        (
            f"transaction commit of 20,000 keys into {cost['keys']:,}, layout {cost['layout']}",
            _named(cost, "_ms", "_max"),
        )
        for cost in tables.get("size", [])
    ]
    for layout, times in tables.get("update", {}).items():
        rows.append((f"read-modify-write of 20,000 keys, p50, layout {layout}", ", ".join(map(_ms, times))))
    for part, title in (("read", "reading the whole table"), ("spark", "the same in Spark")):
        if part in tables:
            rows.append((title, _named(tables[part], "_ms")))
    for layout, steps in tables.get("steps", {}).items():
        told_of = ", ".join(f"{name} {_ms(ms)}" for name, ms in steps.items())
        rows.append((f"steps of 1,000 keys into 8,000, p50, layout {layout}", told_of))
    for name, age in ages(tables):
        rows.append((f"1,000 keys into a table at version {age['version']:,}{name}, p50", _named(age, "_ms")))
    return Sheet("Transaction commits without Spark and broker", ("what", "measured"), rows)


def machine_line(documents: Documents) -> str:
    """The machine, the versions, and what others took of it meanwhile."""
    lines = []
    for part in (*CONTESTS, "steady", "profile"):
        document = documents.get(part)
        if document is not None:
            machine, others = document["machine"], document.get("others_share")
            taken = (
                f"others took {others['min']:.0%} … {others['median']:.0%} … {others['max']:.0%} of the machine"
                if others
                else ""
            )
            named = ", ".join(f"{name} {value}" for name, value in machine.items())
            lines.append(f"- **{part}** (`{document['command']}`): {named}; {taken or 'the load is not known'}.")
    return "\n".join(lines)


def markdown(sheet: Sheet) -> str:
    """A table as the page has it."""
    lines = [sheet.columns, ["---"] * len(sheet.columns), *sheet.rows]
    return "\n".join("| " + " | ".join(cell or " " for cell in line) + " |" for line in lines)


def constants_sheet(documents: Documents) -> Sheet:
    """What bounds a transaction, by the model's constants."""
    return Sheet("What bounds what", ("part", "costs", "grows with"), list(model.constants(documents)))


def predictions_sheet(documents: Documents) -> Sheet:
    """The model against measured points that it was not fitted to."""
    columns = ("what", "the model says", "measured", "off by")
    return Sheet("From one transaction to the next", columns, list(model.tried(documents)))


def paper_sheet(documents: Documents) -> Sheet:
    """The model carried further than anything that was measured."""
    columns = (
        "messages a batch",
        "transactions a second",
        "processing of one",
        "ordered, of the time from one to the next",
    )
    return Sheet("On paper", columns, list(model.on_paper(documents)))


def grid_sheet(documents: Documents) -> Sheet:
    """Every point of the grid, system by system, and how ours stand beside the better peer of the point."""
    columns = (
        "keys a batch",
        "in the table",
        "system",
        "1,000 messages/s",
        "p50",
        "mean",
        "p99",
        "against the better peer",
        "",
    )
    rows = []
    for point in documents.get("grid", {}).get("points", []):
        better = better_peer(point)
        for each in point["summaries"]:
            ratio = _ratio(point, each["system"], better)
            verdict = MET[None if ratio is None else ratio["max"] >= NO_CLIFF]
            shown = "-" if ratio is None else f"{_spread(ratio)} times {better}"
            times = [_ms(each.get(name)) for name in ("p50_ms", "mean_ms", "p99_ms")]
            speed = _thousands(each["messages_per_second"])
            rows.append((f"{point['keys']:,}", f"{point['table']:,}", each["system"], speed, *times, shown, verdict))
        of = (f"{point['keys']:,}", f"{point['table']:,}")
        rows += [(*of, each.split(":")[0], "not finished", *["-"] * 5) for each in point["unfinished"]]
    return Sheet("Keys in a batch, and in the table", columns, rows)


def scale_sheet(documents: Documents) -> Sheet:
    """What large batches and large tables may cost, and do cost."""
    found = scale_targets(documents) if "scale" in documents else ()
    rows = [(each.what, each.wanted, each.shown, MET[each.is_met]) for each in found]
    return Sheet("Large batches, large tables", ("what", "target", "reached", ""), rows)


def sink_sheets_of(documents: Documents) -> list[Sheet]:
    """Records passed on from Kafka to Kafka, beside what that is to reach."""
    rows = documents.get("sinks", {}).get("rows", [])
    measured = Sheet("Sinks", sink_sheets.COLUMNS, list(sink_sheets.sink_rows(rows)))
    if not rows:
        return [measured]
    reached = [(goal.what, goal.wanted, goal.shown, MET[goal.is_met]) for goal in sink_sheets.sink_targets(rows)]
    return [measured, Sheet("Sinks: targets", ("what", "target", "reached", ""), reached)]


def append_sheets_of(documents: Documents) -> list[Sheet]:
    """Rows appended from Kafka to Delta tables, beside what that is to reach."""
    rows = documents.get("appends", {}).get("rows", [])
    measured = Sheet("Appends", append_sheets.COLUMNS, list(append_sheets.append_rows(rows)))
    if not rows:
        return [measured]
    reached = [(goal.what, goal.wanted, goal.shown, MET[goal.is_met]) for goal in append_sheets.append_targets(rows)]
    return [measured, Sheet("Appends: targets", ("what", "target", "reached", ""), reached)]


def gear_sheets_of(documents: Documents) -> list[Sheet]:
    """Batches from one message to 200,000 and partitions from 4 to 512, beside what they are to reach."""
    targets_of = gear_sheets.gear_targets(documents) if "gears" in documents else ()
    rows = [(each.what, each.wanted, each.shown, MET[each.is_met]) for each in targets_of]
    return [
        Sheet("Gears", gear_sheets.SPEED_COLUMNS, list(gear_sheets.speed_rows(documents))),
        Sheet("Partitions", gear_sheets.PARTITION_COLUMNS, list(gear_sheets.partition_rows(documents))),
        Sheet("Gears: targets", ("what", "target", "reached", ""), rows),
    ]


def failures_sheet(documents: Documents) -> Sheet:
    """What `make experiment` has found: for each kill, how long each system lagged further behind than before it."""
    systems: Mapping[str, Any] = documents.get("machine-failures", {}).get("systems", {})
    kills = zip(*(each["recoveries"] for each in systems.values()), strict=True)
    rows = [(f"{of_all[0]['at_s']:.0f} s", of_all[0]["what"], *map(_recovery, of_all)) for of_all in kills]
    whole = [f"{each['p50_s']:.2f} s, {each['p99_s']:.1f} s" for each in systems.values()]
    rows += [("all", "latency p50, p99", *whole)] if systems else []
    return Sheet("Machines that fail: seconds until the lag is as before", ("at", "what", *systems), rows)


def _recovery(each: Mapping[str, Any]) -> str:
    behind = f" ({each['lag_before']:,} before)"
    if each["seconds"] is None:
        return f"not before the next kill{behind}"
    first = f"{each['first_seconds']:.1f} s"
    return (first if each["seconds"] == each["first_seconds"] else f"{first}; to stay {each['seconds']:.1f} s") + behind


def better_peer(point: Mapping[str, Any]) -> str:
    """Which of a point's peers has the higher median throughput; empty: none has finished."""
    peers = [each for each in point["summaries"] if not each["system"].startswith("ours")]
    return max(peers, key=lambda each: each["messages_per_second"]["median"])["system"] if peers else ""


def _ratio(point: Mapping[str, Any], system: str, peer: str) -> Mapping[str, float] | None:
    found = [each for each in point["ratios"] if (each["system"], each["peer"]) == (system, peer)]
    return found[0]["throughput"] if found else None


def _loads(part: str, documents: Documents) -> str:
    """What else the machine did, figure by figure."""
    found = documents.get(part, {})
    said = {each["load"] for each in found.get("points", found.get("figures", [])) if each.get("load")}
    return "".join(f"Measured with {each}.\n\n" for each in sorted(said))


def sections(documents: Documents) -> Mapping[str, Callable[[], str]]:
    """What stands between the pages' marks, by name."""

    def shown(*sheets: Sheet) -> str:
        return "\n\n".join(markdown(sheet) if sheet.rows else "Not measured." for sheet in sheets)

    found: dict[str, Callable[[], str]] = {
        "summary": lambda: shown(summary_sheet(documents)),
        "machine": lambda: machine_line(documents) or "Not measured.",
        "targets": lambda: shown(target_sheet(documents)),
        "steady": lambda: shown(steady_sheet(documents)),
        "profile": lambda: shown(profile_sheet(documents)),
        "tables": lambda: shown(table_sheet(documents)),
        "grid": lambda: _linked("grid", documents) + _loads("grid", documents) + shown(grid_sheet(documents)),
        "scale": lambda: _linked("scale", documents) + _loads("scale", documents) + shown(scale_sheet(documents)),
        "gears": lambda: _linked("gears", documents) + shown(*gear_sheets_of(documents)),
        "sinks": lambda: _linked("sinks", documents) + shown(*sink_sheets_of(documents)),
        "appends": lambda: _linked("appends", documents) + shown(*append_sheets_of(documents)),
        "failures": lambda: shown(failures_sheet(documents)),
        "constants": lambda: shown(constants_sheet(documents)),
        "predictions": lambda: shown(predictions_sheet(documents)),
        "paper": lambda: shown(paper_sheet(documents)),
    }
    for part in CONTESTS:
        found[part] = lambda part=part: _linked(part, documents) + shown(*_contest(part, documents))  # type: ignore[misc]
    return found


def _linked(part: str, documents: Documents) -> str:
    """Links to a contest's figures and plots, which stand beside the page."""
    if part not in documents:
        return ""
    drawn = [f"[{kind}]({part}-{kind}.svg)" for kind in PLOTS.get(part, ())]
    return ", ".join([f"[All figures]({part}.json)", *drawn]) + ".\n\n"


def all_sheets(documents: Documents) -> Iterator[Sheet]:
    """All tables, the targets last."""
    for part in CONTESTS:
        yield from _contest(part, documents)
    yield from (
        *gear_sheets_of(documents),
        *sink_sheets_of(documents),
        *append_sheets_of(documents),
        grid_sheet(documents),
        scale_sheet(documents),
        steady_sheet(documents),
        table_sheet(documents),
        profile_sheet(documents),
        target_sheet(documents),
    )


def _contest(part: str, documents: Documents) -> list[Sheet]:
    return [speed_sheet(part, documents), ratio_sheet(part, documents), cost_sheet(part, documents)]


def _summaries(part: str, documents: Documents) -> list[dict[str, Any]]:
    found = documents.get(part, {}).get("summaries", [])
    order = list(dict.fromkeys(each["work"] for each in found))
    return sorted(found, key=lambda each: (order.index(each["work"]), each["batch_messages"]))


def _thousands(spread: Mapping[str, float]) -> str:
    return _spread({name: figure / 1000 for name, figure in spread.items()})


def _spread(spread: Mapping[str, float]) -> str:
    return " … ".join(formatted(spread[name]) for name in ("min", "median", "max"))


def _named(figures: Mapping[str, Any], *endings: str) -> str:
    """The figures whose names end so, by their names."""
    found = {name: figure for name, figure in figures.items() if name.endswith(endings)}
    return ", ".join(f"{_plain(name)} {_ms(figure)}" for name, figure in found.items())


def _plain(name: str) -> str:
    return name.replace("_ms_max", "_longest").removesuffix("_ms").replace("_", " ")


def _ms(figure: float | None) -> str:
    return "-" if figure is None else f"{formatted(figure)} ms"
