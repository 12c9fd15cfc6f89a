"""The broker on the network: sockets, TLS, heartbeats, time, and the thread that waits for the disk."""
