"""How the checker tells topics apart, and counts the records of ranges."""

from __future__ import annotations

from verifier.source import format_topic_id, topic_of


def test_a_topic_is_known_by_its_name_and_the_beginning_of_its_id() -> None:
    assert (topic_of("flights#gDKxAGA4"), topic_of("flights")) == ("flights", "flights")
    assert format_topic_id("RBZp/VA+x") == "RBZp_VA-x"
