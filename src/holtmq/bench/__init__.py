"""A load generator for AMQP brokers, made so light that the broker is what is measured."""

from holtmq.bench.load import Load, Result, run_load

__all__ = ["Load", "Result", "run_load"]
