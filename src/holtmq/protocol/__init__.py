"""Both sides of an AMQP connection as state machines without I/O."""
