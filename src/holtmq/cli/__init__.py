"""The holtmq command: one file per group of commands; terminal output lives here and nowhere else."""
