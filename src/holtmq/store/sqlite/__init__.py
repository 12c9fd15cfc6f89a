"""The store in one SQLite file: topology, accounts, messages and where each stands in its queues."""
