"""Pictures and figures for people: SVG, the graph of a topology, tables, numbers as they are written."""
