"""The RabbitMQ release that HoltMQ reports to clients and tools.

Clients check product and version to decide which features they may use. For example, Celery changes the prefetch count of
tasks with an ETA through a global `basic.qos` only if the product is RabbitMQ 3.3 or later.
"""

RABBITMQ_PRODUCT = "RabbitMQ"
RABBITMQ_VERSION = "3.13.0"
