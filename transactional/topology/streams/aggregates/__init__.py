"""The aggregates of a stream: ours, those of a user, and how they update states."""
