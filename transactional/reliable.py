"""Core reliability, Storm's classic API: topologies that process each message at least once or at most once."""

from transactional.model.guarantees import Guarantee
from transactional.topology.reliable.bolts import RichBolt, TupleCollector
from transactional.topology.reliable.builder import TopologyBuilder
from transactional.topology.reliable.queue_spout import QueueSpout, SpoutCollector

__all__ = ["Guarantee", "QueueSpout", "RichBolt", "SpoutCollector", "TopologyBuilder", "TupleCollector"]
