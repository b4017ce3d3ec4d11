"""One Delta table: a loaded version, its log, files, commits and staged files, look-ups, the port of layouts."""
