"""What a row of a state may hold: its columns, the limits of their values and sums, and when it expires."""
