"""The store in one SQLite file: topology, accounts, messages and their states in the queues."""
