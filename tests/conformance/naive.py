"""Routing by the letter of the rules, as short as possible: each binding is tried in turn, without index or cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from hashlib import blake2b
from math import log, prod
from typing import Any
from zlib import crc32

from holtmq import Binding, Exchange, Queue
from holtmq.topology.registry import PREDECLARED

HASH = "x-consistent-hash"


def chosen(bindings: list[Binding], text: str) -> list[Binding]:
    """Return the bindings to the destination that the hash of a text chooses."""
    weights: Counter[tuple[str, str]] = Counter()
    for b in bindings:
        weights[b.destination_type, b.destination] += int(b.routing_key)
    slot = crc32(text.encode()) % 65536

    def score(destination: tuple[str, str]) -> float:
        seeds = (int(blake2b(text.encode(), digest_size=8).hexdigest(), 16) for text in (str(slot), ":".join(destination)))
        return -log(1 - prod(seeds) % 2**64 / 2**64) / weights[destination]

    return [b for b in bindings if (b.destination_type, b.destination) == min(weights, key=score)]


def text_of(value: object) -> str:
    """Return the text of a header, for the types that tests use."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{text_of(value[name])}" for name in sorted(value)) + "}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(text_of, value))}]"
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def matches(type_: str, binding: Binding, key: str, headers: Mapping[str, Any]) -> bool:
    match type_:
        case "fanout":
            return True
        case "direct":
            return binding.routing_key == key
        case "topic":
            return fits(*(tuple(text.split(".")) if text else () for text in (binding.routing_key, key)))
    mode = binding.arguments.get("x-match", "all")
    names = [name for name in binding.arguments if name != "x-match" and (str(mode).endswith("x") or name[:2] != "x-")]
    wanted = {name: binding.arguments[name] for name in names}
    holds = (name in headers and (value is None or is_same(seen(value), seen(headers[name]))) for name, value in wanted.items())
    return all(holds) if mode in ("all", "all-with-x") else any(holds)


@cache
def fits(pattern: tuple[str, ...], words: tuple[str, ...]) -> bool:
    if not pattern or not words:
        return all(token == "#" for token in pattern) and not words
    if pattern[0] == "#":
        return fits(pattern[1:], words) or fits(pattern, words[1:])
    return pattern[0] in ("*", words[0]) and fits(pattern[1:], words[1:])


def seen(value: object) -> object:
    """Return a value as RabbitMQ compares it: a timestamp as a number, bytes as text, an empty table as an empty array."""
    if isinstance(value, datetime):
        return int(value.timestamp())
    return value.decode() if isinstance(value, bytes) else [] if value == {} else value


def is_same(one: object, other: object) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(is_same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return type(one) is type(other) and one == other


class NaiveBroker:
    """A vhost as three lists. Every rule is a filter over them. An error is raised as its reply code."""

    def __init__(self, *, strict_unbind: bool = True) -> None:
        self.exchanges = [Exchange(name, type_) for name, type_ in PREDECLARED.items()]
        self.queues: list[Queue] = []
        self.bindings: list[Binding] = []
        self.strict_unbind = strict_unbind

    def exchange(self, name: str) -> Exchange:
        refuse(403, name == "")
        found = [exchange for exchange in self.exchanges if exchange.name == name]
        refuse(404, not found)
        return found[0]

    def declare_exchange(self, wanted: Exchange) -> None:
        refuse(403, wanted.name == "")
        known = [x for x in self.exchanges if x.name == wanted.name]
        shape = [(x.type, x.internal, x.auto_delete, x.alternate_exchange) for x in [*known, wanted]]
        refuse(406, wanted.type not in ("direct", "fanout", "topic", "headers", HASH) or shape[0] != shape[-1])
        refuse(406, wanted.type == HASH and "hash-property" in wanted.arguments)
        refuse(403, not known and wanted.name.startswith("amq."))
        self.exchanges += [] if known else [wanted]

    def declare_queue(self, wanted: Queue) -> None:
        known = [queue for queue in self.queues if queue.name == wanted.name]
        refuse(406, any(queue.arguments != wanted.arguments for queue in known))
        refuse(403, wanted.name.startswith("amq."))
        self.queues += [] if known else [wanted]

    def bind(self, binding: Binding) -> None:
        type_ = self.exchange(binding.source).type
        if binding.is_to_queue:
            refuse(404, binding.destination not in {queue.name for queue in self.queues})
        else:
            self.exchange(binding.destination)
        modes = ("all", "any", "all-with-x", "any-with-x")
        refuse(406, type_ == "headers" and binding.arguments.get("x-match", "all") not in modes)
        refuse(406, type_ == HASH and not (binding.routing_key.isdigit() and int(binding.routing_key)))
        self.bindings += [] if binding in self.bindings else [binding]

    def unbind(self, binding: Binding) -> None:
        refuse(403, binding.source == "")
        slots = {(b.source, b.destination_type, b.destination, b.routing_key) for b in self.bindings}
        slot = binding.source, binding.destination_type, binding.destination, binding.routing_key
        refuse(406, self.strict_unbind and binding not in self.bindings and slot in slots)
        self.remove([binding])

    def delete_queue(self, name: str) -> None:
        self.queues = [queue for queue in self.queues if queue.name != name]
        self.remove([b for b in self.bindings if b.is_to_queue and b.destination == name])

    def delete_exchange(self, name: str) -> None:
        refuse(403, name == "" or name.startswith("amq."))
        self.exchanges = [exchange for exchange in self.exchanges if exchange.name != name]
        self.remove([b for b in self.bindings if name == b.source or (not b.is_to_queue and name == b.destination)])

    def remove(self, doomed: list[Binding]) -> None:
        removed = [b for b in self.bindings if b in doomed]
        self.bindings = [b for b in self.bindings if b not in doomed]
        idle = {b.source for b in removed} - {b.source for b in self.bindings}
        for name in [x.name for x in self.exchanges if x.name in idle and x.auto_delete]:
            self.delete_exchange(name)

    def route(self, exchange: str, key: str, headers: Mapping[str, Any]) -> tuple[str, ...]:
        refuse(403, exchange != "" and self.exchange(exchange).internal)
        copies = [headers[name] for name in ("CC", "BCC") if name in headers]
        refuse(406, not all(isinstance(copy, list) for copy in copies))
        keys = {key, *(k for copy in copies for k in copy if isinstance(k, str))}
        if exchange == "":
            return tuple(sorted(keys & {queue.name for queue in self.queues}))
        queues: set[str] = set()
        known, unseen, ahead = {x.name: x for x in self.exchanges}, {x.name for x in self.exchanges}, [exchange]
        while ahead:
            name = ahead.pop()
            if name not in unseen:
                continue
            unseen.remove(name)
            here = [b for b in self.bindings if b.source == name]
            header = known[name].arguments.get("hash-header")
            if known[name].type == HASH:
                found = chosen(here, key if header is None else text_of(headers.get(str(header)))) if here else []
            else:
                found = [b for b in here if any(matches(known[name].type, b, k, headers) for k in keys)]
            queues |= {b.destination for b in found if b.is_to_queue}
            ahead += [b.destination for b in found if not b.is_to_queue]
            ahead += [known[name].alternate_exchange or ""] if not found else []
        return tuple(sorted(queues))


def refuse(code: int, condition: bool) -> None:  # noqa: FBT001
    if condition:
        raise RefusedError(code)


class RefusedError(Exception):
    @property
    def code(self) -> int:
        return int(self.args[0])
