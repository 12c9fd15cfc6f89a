"""What an AMQP broker does, without sockets, files or a clock: vhosts, queues, consumers, confirms, transactions, rights."""
