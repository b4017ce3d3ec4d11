"""Examines the targets of sinks: their settings, and topics and tables as the independent checker sees them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from transactional.core.ports import SinkAddress
from transactional.core.ports.examining import Diagnosis, Problem
from transactional.model.errors import ConfigError, OperatingError
from transactional.topology.topology import Topology
from verifier.sinks.tables import AppendedTable
from verifier.sinks.topics import CheckedTopic
from verifier.source import KafkaSource

_REMEDIES = {
    "delta": "nothing has to be done if somebody has meant it, such as the deletion of a person's rows; `transactional "
    "verify --sinks` says of which transactions rows are missing",
}
_REMEDY = (
    "nothing has to be done for a test; in production, give it 3 replicas, min.insync.replicas 2, and no unclean "
    "elections: the loss of one broker may otherwise lose what is published"
)


def examine_sinks(topology: Topology) -> Iterator[Diagnosis]:
    """Yield the settings with which the targets of sinks may lose what is published. None of them is a fault."""
    known_risks = set[str]()
    for name, sink in topology.sinks.items():
        sink_name = f"sink {name!r}"
        try:
            risks = [risk for risk in sink.risks(topology.id) if risk not in known_risks]
        except (ConfigError, OperatingError) as error:
            remedy = "make sure that its target can be reached, and try again"
            yield Diagnosis(Problem.SINK_AT_RISK, sink_name, f"it can't be examined: {error}", remedy, is_harmless=True)
            continue
        known_risks.update(risks)
        if risks:
            address = sink.address()
            remedy = _REMEDY if address is None else _REMEDIES.get(address.format, _REMEDY)
            yield Diagnosis(Problem.SINK_AT_RISK, sink_name, "; ".join(risks), remedy, is_harmless=True)


def appended_tables(topology: Topology) -> list[AppendedTable]:
    """Return the tables to which sinks of a topology append."""
    addresses = {name: sink.address() for name, sink in topology.sinks.items()}
    return [
        AppendedTable(name, address.uri, address.targets[0], {key: str(text) for key, text in address.options.items()})
        for name, address in addresses.items()
        if address is not None and address.format == "delta"
    ]


def checked_topics(topology: Topology) -> tuple[list[CheckedTopic], list[str]]:
    """Return the topics of a topology's sinks, and a note for each sink that can't be checked."""
    sinks_by_topic: dict[tuple[str, str], list[str]] = defaultdict(list)
    addresses: dict[tuple[str, str], SinkAddress] = {}
    notes = [
        f"sink {name!r} sends at least once, and its records name no transaction: {sink.target_name} was not checked"
        for name, sink in topology.sending_sinks.items()
    ]
    for name, sink in topology.sinks.items():
        address = sink.address()
        if address is None:
            notes.append(f"sink {name!r} publishes to no topic and no table: {sink.target_name} was not checked")
        if address is None or address.format != "kafka":
            continue
        for topic in address.targets:
            sinks_by_topic[address.uri, topic].append(name)
            addresses[address.uri, topic] = address
    topics = [
        CheckedTopic(topic, tuple(sinks_by_topic[uri, topic]), KafkaSource(uri, address.options))
        for (uri, topic), address in addresses.items()
    ]
    return topics, notes
