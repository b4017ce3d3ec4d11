"""What a user declares of event time: windows, bolts that are called with them, joins over them."""
