"""What a run leaves behind: its journal, its attempts and minutes, its troubles, and who is notified of them."""
