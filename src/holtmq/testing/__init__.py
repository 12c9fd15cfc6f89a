"""A broker for tests: a real one, on a free port, within a fraction of a second, gone when the test is over."""

from holtmq.testing.broker import TestBroker, running_broker

__all__ = ["TestBroker", "running_broker"]
