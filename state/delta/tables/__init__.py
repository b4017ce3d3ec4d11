"""One Delta table: where it lies, a loaded version, its log and files, how files are named and found."""
