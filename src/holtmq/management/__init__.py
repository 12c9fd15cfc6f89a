"""To see a broker and to run it: an HTTP API as RabbitMQ has it, metrics, and web pages."""
