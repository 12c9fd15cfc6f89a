"""Channels and their consumers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from holtmq.broker.channel import Channel
from holtmq.broker.consumer import Consumer
from holtmq.errors import NotFoundError
from holtmq.management.listing import Items
from holtmq.management.node import ConnectedClient
from holtmq.management.operations import CHARTS, LISTING, Call, api
from holtmq.management.views import channel_view, consumer_view

Found: TypeAlias = tuple[Channel, ConnectedClient]


@api.collection("/api/channels", query=(*LISTING, *CHARTS))
def channels(call: Call) -> Any:
    """List the channels of all connections that the user can see."""
    return _list(call, list(_channels(call)))


@api.collection("/api/vhosts/{vhost}/channels")
def channels_of_vhost(call: Call) -> Any:
    """List the channels of a vhost."""
    vhost = call.vhost
    return _list(call, [(channel, client) for channel, client in _channels(call) if channel.vhost is vhost])


@api.get("/api/channels/{channel}", query=CHARTS)
def channel(call: Call) -> dict[str, Any]:
    """Return a channel with its consumers."""
    for found, client in _channels(call):
        if f"{client.name} ({found.number})" == call.path["channel"]:
            view = channel_view(found, client, call.statistics, call.span("msg_rates"))
            owners = {found.session: client}
            view["consumer_details"] = [consumer_view(consumer, owners) for consumer in found.consumers.values()]
            return view
    raise NotFoundError(f"no channel {call.path['channel']!r}")


@api.collection("/api/consumers")
def consumers(call: Call) -> Any:
    """List the consumers of all connections that the user can see."""
    return _consumers(call)


@api.collection("/api/consumers/{vhost}")
def consumers_of_vhost(call: Call) -> Any:
    """List the consumers of a vhost."""
    return _consumers(call)


def _consumers(call: Call) -> Items[Consumer]:
    owners = {client.session: client for client in call.clients() if client.session is not None}
    channels = [channel for vhost in call.vhosts for channel in vhost.channels if channel.session in owners]
    return Items(
        [consumer for channel in channels for consumer in channel.consumers.values()],
        lambda consumer: consumer_view(consumer, owners),
        lambda consumer: (consumer.queue.name,),
        lambda consumer: (consumer.queue.name, consumer.tag),
    )


def _channels(call: Call) -> Iterator[Found]:
    for client in call.clients():
        if client.session is not None:
            for channel in client.session.channels.values():
                yield channel, client


def _list(call: Call, found: list[Found]) -> Items[Found]:
    span = call.span("msg_rates")
    return Items(
        found,
        lambda each: channel_view(*each, call.statistics, span),
        lambda each: (f"{each[1].name} ({each[0].number})",),
    )
