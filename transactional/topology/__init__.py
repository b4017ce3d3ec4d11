"""From a user's declarations to a frozen `Topology`: builder, wiring, stages, and its description."""
