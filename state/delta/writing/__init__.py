"""Every Delta commit of a state's table, by us, delta-rs or Spark; staged files, and the port of layouts."""
