"""Trident: topologies as operations on streams, which become a `Topology`."""
