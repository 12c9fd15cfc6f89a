"""`format("amqp")`: messages of an AMQP broker as a source and a sink of Spark."""
