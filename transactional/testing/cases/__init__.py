"""The tools of contract suites: promises as cases, their steps in words, and runs of them."""
