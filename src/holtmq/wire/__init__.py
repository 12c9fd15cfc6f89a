"""Bytes and what they mean: frames, methods, tables and content of AMQP 0-9-1. Stateless; the state is in `protocol`."""
