"""The holtmq command: one file per command, one edge where errors become a line on stderr and an exit code."""
