"""Examines the targets of sinks: whether they can be read, and their settings.

Lists the topics and tables that the independent checker reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from transactional.core.ports import SinkAddress
from transactional.core.ports.examining import Diagnosis, Problem
from transactional.core.store import TopologyStatus
from transactional.model.errors import TransactionalError
from transactional.model.names import SINK_TABLE, SINKS
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


_UNREADABLE_REMEDY = (
    "no run can publish to it before it can be read: make sure that it can be reached, or restore it from a backup"
)
_MISSING_REMEDY = (
    "put the table back with its folder, or declare the place to which it was moved; `transactional sinks drop` lets "
    "the sink begin with another one"
)


def examine_sinks(topology: Topology, status: TopologyStatus | None) -> Iterator[Diagnosis]:
    """Yield what is wrong with the targets of sinks, and the harmless settings with which they may lose records."""
    known_risks, stored_sinks = set[str](), {} if status is None else status.fingerprint.get(SINKS, {})
    for name, sink in topology.sinks.items():
        sink_name = f"sink {name!r}"
        try:
            risks = [risk for risk in sink.risks(topology.id) if risk not in known_risks]
            sink.prepare()
        except TransactionalError as error:
            yield Diagnosis(Problem.SINK_UNREADABLE, sink_name, str(error), _UNREADABLE_REMEDY)
            continue
        if (table_id := stored_sinks.get(name, {}).get(SINK_TABLE)) and SINK_TABLE not in sink.identity():
            problem = f"there is no {sink.target_name}, and the store knows one with the id {table_id}"
            yield Diagnosis(Problem.TABLE_MISSING, sink_name, problem, _MISSING_REMEDY)
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
    sinks_by_topic: dict[tuple[str, str], dict[str, bool]] = defaultdict(dict)
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
            sinks_by_topic[address.uri, topic][name] = address.is_chosen_by_records
            addresses[address.uri, topic] = address
    topics = [
        CheckedTopic(topic, sinks_by_topic[uri, topic], KafkaSource(uri, address.options))
        for (uri, topic), address in addresses.items()
    ]
    return topics, notes
