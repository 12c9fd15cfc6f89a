"""A routing request together with the messages that it is for, checked against each other. Runs on the driver."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame

from holtmq.routing import Router
from holtmq.spark.arguments import require_messages
from holtmq.spark.message_columns import MessageColumns
from holtmq.spark.routing_request import RoutingRequest
from holtmq.spark.routing_spec import RoutingSpec
from holtmq.spark.signature import Signature


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """What both ways to route need: Spark's, and that of tasks that read and write the files themselves."""

    messages: DataFrame
    request: RoutingRequest
    router: Router
    spec: RoutingSpec
    signature: Signature

    @classmethod
    def of(cls, messages: DataFrame, request: RoutingRequest) -> PreparedRequest:
        """Build the router, and find the signature in the columns. Raise an error if one of them cannot be used."""
        require_messages("messages", messages)
        router = request.make_router()
        spec = RoutingSpec.of(request, router)
        signature = Signature.of(messages, request.columns, request.exchange, spec.inputs)
        MessageColumns.of(messages).require_free(spec.added.names)
        return cls(messages, request, router, spec, signature)
