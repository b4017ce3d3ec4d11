"""The staircase and the charts of the console, as SVG."""
