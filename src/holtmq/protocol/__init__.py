"""The AMQP connection and its channels as state machines: bytes in, calls and bytes out, no I/O."""
