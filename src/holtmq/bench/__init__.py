"""A load generator for AMQP brokers, light enough that the broker is the bottleneck."""

from holtmq.bench.load import Load, Result, run_load

__all__ = ["Load", "Result", "run_load"]
