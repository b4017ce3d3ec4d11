"""The operations of a stream as a bolt: its steps, and what they do to tuples in a task."""
