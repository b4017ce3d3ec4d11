"""`TridentTopology`: streams are declared on it, and `build()` makes the topology of them that the engine runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transactional.dead_letters import check_dead_letters
from transactional.errors import ConfigError
from transactional.groupings import DEFAULT_STREAM
from transactional.ports import Spout, SpoutMaker, TransactionState
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.topology import Topology
from transactional.topology.wiring import check_id, check_parallelism, checked_spout
from transactional.trident.compiling import declare, spout_tasks
from transactional.trident.declarations import Declarations
from transactional.trident.graph import Node, Origin
from transactional.trident.streams import Stream, joined, merged


class TridentTopology:
    """A topology of streams, as in Storm's Trident.

    `topology_id` is the name under which progress is stored: a topology started again under the same id continues where
    it ended. `parallelism` is the number of tasks of the spout and of what follows, unless a stream says otherwise.
    """

    def __init__(self, topology_id: str, *, parallelism: int = 1) -> None:
        check_id("topology", topology_id)
        check_parallelism(topology_id, parallelism)
        self.id, self.parallelism = topology_id, parallelism
        self._declarations = Declarations(topology_id)
        self._spout: tuple[str, Spout | SpoutMaker] | None = None
        self._dead_letters: TransactionState | None = None

    def __repr__(self) -> str:
        return f"TridentTopology({self.id!r})"

    def new_stream(self, name: str, spout: Spout | SpoutMaker) -> Stream:
        """The stream of what a spout reads. `name` becomes the id of the spout."""
        check_id("stream", name)
        if self._spout is not None:
            raise ConfigError(
                f"topology {self.id!r} has the stream {self._spout[0]!r}, so it can have no second one, {name!r}: it "
                "reads one spout, which may read several topics"
            )
        output = checked_spout(name, spout, self.parallelism).output
        self._spout = (name, spout)
        node = self._declarations.graph.add(Node(output, origin=Origin(name, DEFAULT_STREAM, is_late=False)))
        return Stream(self._declarations, node)

    def merge(self, *streams: Stream) -> Stream:
        """The tuples of several streams, which have the same fields."""
        return merged(self._declarations, streams)

    def join(
        self,
        *streams: tuple[Any, ...],
        how: str | Sequence[str] = "inner",
        keep_all: bool = False,
        output: Sequence[str] | None = None,
    ) -> Stream:
        """Tuples of one batch with equal values: `join((orders, "customer"), (payments, "payer"))`.

        The fields are those that the first stream is joined on, then all others, stream by stream; with `keep_all` all
        fields of all streams, in their order. `output` gives them other names. `how` is `inner`, `left`, `right`, or
        `outer`, for all streams after the first or one for each; NULL stands for a tuple that is missing, and NULL in
        a field that is compared equals nothing.
        """
        return joined(self._declarations, streams, how, keeps_all=keep_all, output=output)

    def set_dead_letters(self, state: TransactionState) -> None:
        """Set tuples aside on which a step fails `attempts_max` times, instead of stopping with its error.

        `state` is a `DeadLetterTable`; what is written is the tuple that the failing component had received.
        """
        check_dead_letters(state)
        self._dead_letters = state

    def build(
        self,
        *,
        strict: bool = False,
        options: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> Topology:
        """Compile the streams to a topology. `strict`, `options` and `config` are those of
        `TransactionalTopologyBuilder.build`. Raises `ConfigError`."""
        if self._spout is None:
            raise ConfigError(f"topology {self.id!r} has no stream: begin with new_stream('name', a spout)")
        if not self._declarations.graph.persisted:
            raise ConfigError(
                f"topology {self.id!r} keeps nothing, so it would have no effect: end a stream with "
                "persistent_aggregate(…)"
            )
        name, spout = self._spout
        graph = self._declarations.graph
        builder = TransactionalTopologyBuilder(self.id, name, spout, spout_tasks(graph, self.parallelism))
        declare(graph, builder, self.parallelism)
        if self._dead_letters is not None:
            builder.set_dead_letters(self._dead_letters)
        return builder.build(strict=strict, options=options, config=config)
