"""The broker on the network: sockets, TLS, heartbeats, turns, commits and back-pressure."""
