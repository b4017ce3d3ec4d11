"""What every HTTP server of ours has in common: where it listens, and who has access."""
