"""A blocking AMQP client for bulk transfers, used by the Spark source and sink."""
