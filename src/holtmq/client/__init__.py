"""A blocking AMQP client for bulk: what the Spark source and sink are made of."""
