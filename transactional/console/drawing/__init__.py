"""Diagrams and charts of the console, as SVG."""
