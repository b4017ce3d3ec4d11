"""The write path of a state's table: a snapshot, the files it touches, the change, new files, and the log's entry."""
