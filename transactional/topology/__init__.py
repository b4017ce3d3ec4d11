"""From what a user declares to a frozen `Topology`: builder, wiring, stages, and how it is described."""
