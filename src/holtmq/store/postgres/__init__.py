"""The store in a PostgreSQL database. Needs `holtmq[postgres]`."""
