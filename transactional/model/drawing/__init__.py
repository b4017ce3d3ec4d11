"""Pictures and texts for people: SVG, the graph of a topology, tables of rows, formatted numbers."""
