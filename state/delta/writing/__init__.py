"""The open table of a state, whatever its layout."""
