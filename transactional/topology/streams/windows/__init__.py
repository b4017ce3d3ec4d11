"""What windows of streams are compiled to: by time, sessions, and by count."""
