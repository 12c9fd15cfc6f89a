"""Reads and writes RabbitMQ's definitions JSON: `rabbitmqctl export_definitions`, `GET /api/definitions`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any, TypeAlias, TypeVar

from holtmq.errors import DefinitionsError, InvalidValueError
from holtmq.regular_expression import RegularExpression
from holtmq.table import Table, describe, to_plain
from holtmq.table_json import table_from_json, table_to_json
from holtmq.topology.criteria import require_x_match
from holtmq.topology.entities import Binding, Exchange, Policy, Queue
from holtmq.topology.weight import CONSISTENT_HASH, weight_of

T = TypeVar("T")
E = TypeVar("E", Exchange, Queue, Binding, Policy)
Parts: TypeAlias = tuple[
    tuple[Exchange, ...], tuple[Queue, ...], tuple[Binding, ...], tuple[Policy, ...], tuple[tuple[str, str], ...]
]
ROOT = "document"
HALF_A_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")
"""The escape of half a surrogate pair. JSON allows one without the other half; UTF-8 has no code for it."""
MAX_DIGITS = 40
NESTED_TOO_DEEPLY = "the JSON is nested too deeply to read"
NAMED_SECTIONS = {
    "vhosts": "name",
    "users": "name",
    "permissions": "user",
    "topic_permissions": "user",
    "parameters": "name",
    "global_parameters": "name",
}
"""Sections that are stored unchanged, with the field that each of their entries must have."""
BROKER_SECTIONS = ("vhosts", "users", "permissions", "topic_permissions", "global_parameters")
"""Sections about the whole broker, which the export of a single vhost omits."""
POLICY_TARGETS = ("all", "queues", "exchanges", "classic_queues", "quorum_queues", "streams")


def parse(text: bytes) -> Mapping[str, Any]:
    """Return the parsed JSON; raise DefinitionsError if the text is not valid JSON."""
    try:
        document = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, parse_int=_integer)
        if HALF_A_PAIR.search(text):
            json.dumps(document, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise DefinitionsError(ROOT, f"expected JSON in UTF-8, got byte {text[error.start]:#04x} at {error.start}") from error
    except json.JSONDecodeError as error:
        raise DefinitionsError(ROOT, f"expected JSON, got line {error.lineno} column {error.colno}: {error.msg}") from error
    except UnicodeEncodeError as error:
        raise DefinitionsError(ROOT, f"expected text that UTF-8 can encode, got {error.object[error.start]!r}") from error
    except RecursionError as error:
        raise DefinitionsError(ROOT, NESTED_TOO_DEEPLY) from error
    return document  # type: ignore[no-any-return]  # `read` checks its type


def read(document: object, vhost: str) -> Parts:
    """Return the parts of a document; entries that do not name a vhost belong to `vhost`."""
    try:
        return _read(document, vhost)
    except RecursionError as error:
        raise DefinitionsError(ROOT, NESTED_TOO_DEEPLY) from error


def _read(document: object, vhost: str) -> Parts:
    if not isinstance(document, Mapping):
        raise DefinitionsError(ROOT, f"expected an object with exchanges, queues and bindings, got {describe(document)}")
    exchanges = _unique("exchanges", _entries(document, "exchanges", lambda fields: _read_exchange(fields, vhost)))
    queues = _unique("queues", _entries(document, "queues", lambda fields: _read_queue(fields, vhost)))
    bindings = _entries(document, "bindings", lambda fields: _read_binding(fields, vhost))
    policies = _unique("policies", _entries(document, "policies", lambda fields: _read_policy(fields, vhost)))
    _require_valid_rules(exchanges, bindings)
    for section, key in NAMED_SECTIONS.items():
        _entries(document, section, partial(Fields.text, name=key))
    sections = tuple(
        (name, json.dumps(value))
        for name, value in document.items()
        if name not in ("exchanges", "queues", "bindings", "policies")
    )
    return tuple(exchanges), tuple(queues), tuple(dict.fromkeys(bindings)), tuple(policies), sections


def write(
    exchanges: Iterable[Exchange],
    queues: Iterable[Queue],
    bindings: Iterable[Binding],
    policies: Iterable[Policy],
    others: Iterable[tuple[str, str]],
    vhost: str | None,
) -> dict[str, Any]:
    """Return the document with these parts, or only with those of one vhost."""

    def here(parts: Iterable[E]) -> Iterator[E]:
        return (part for part in parts if vhost in (None, part.vhost))

    kept = {name: json.loads(text) for name, text in others}
    if vhost is not None:
        kept = {name: _of_vhost(value, vhost) for name, value in kept.items() if name not in BROKER_SECTIONS}
    parts = sections(here(exchanges), here(queues), here(bindings), here(policies), names_vhost=vhost is None)
    return {**kept, **{name: list(entries) for name, entries in parts.items()}}


def sections(
    exchanges: Iterable[Exchange],
    queues: Iterable[Queue],
    bindings: Iterable[Binding],
    policies: Iterable[Policy],
    *,
    names_vhost: bool,
) -> dict[str, Iterator[dict[str, Any]]]:
    """Return the sections with these parts. Each entry is written when it is read."""
    return {
        "exchanges": _written(exchanges, _write_exchange, names_vhost=names_vhost),
        "queues": _written(queues, _write_queue, names_vhost=names_vhost),
        "bindings": _written(bindings, _write_binding, names_vhost=names_vhost),
        "policies": _written(policies, _write_policy, names_vhost=True),  # as in RabbitMQ's export of one vhost
    }


def _written(parts: Iterable[E], to_json: Callable[[E], dict[str, Any]], *, names_vhost: bool) -> Iterator[dict[str, Any]]:
    return ({**to_json(part), "vhost": part.vhost} if names_vhost else to_json(part) for part in parts)


def _of_vhost(section: Any, vhost: str) -> Any:
    if not isinstance(section, list):
        return section
    return [entry for entry in section if not isinstance(entry, dict) or entry.get("vhost", vhost) == vhost]


class Fields:
    """One entry of a section, read field by field; an invalid field is reported with its path. `rest` returns the others."""

    def __init__(self, value: object, path: str) -> None:
        if not isinstance(value, Mapping):
            raise DefinitionsError(path, f"expected an object, got {describe(value)}")
        self.path = path
        self._fields: Mapping[str, object] = value
        self._taken: set[str] = set()

    def has(self, name: str) -> bool:
        """Return whether the entry has a field."""
        return name in self._fields

    def value(self, name: str, default: object = None) -> object:
        """Return a field of any type."""
        return self._take(name, default)

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string field."""
        value = self._take(name, default)
        if not isinstance(value, str):
            raise self._refused(name, "a string", value)
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a boolean field."""
        value = self._take(name, default)
        if not isinstance(value, bool):
            raise self._refused(name, "true or false", value)
        return value

    def integer(self, name: str, default: int) -> int:
        """Return an integer field."""
        value = self._take(name, default)
        if type(value) is not int:
            raise self._refused(name, "an integer", value)
        return value

    def table(self, name: str) -> Table:
        """Return an object field as a table; a missing one is empty."""
        value = self._take(name, {})
        if value == []:  # RabbitMQ sometimes writes an empty table as an array
            return Table()
        if not isinstance(value, Mapping):
            raise self._refused(name, "an object", value)
        return table_from_json(value, f"{self.path}.{name}")

    def moment(self, name: str) -> datetime | None:
        """Return a time in ISO 8601 format, or None if the field is missing."""
        value = self._take(name, None)
        try:
            return None if value is None else datetime.fromisoformat(str(value))
        except ValueError as error:
            raise self._refused(name, "a time such as 2024-01-31T12:00:00+00:00", value) from error

    def rest(self, keep: str = "") -> Table:
        """Return the fields that were not read, and the field `keep` if the entry has it."""
        rest: dict[str, Any] = {k: v for k, v in self._fields.items() if k == keep or k not in self._taken}
        return Table.of(rest)

    def _take(self, name: str, default: object) -> object:
        self._taken.add(name)
        return self._fields.get(name, default)

    def _refused(self, name: str, expected: str, value: object) -> DefinitionsError:
        seen = describe(value) if name in self._fields else "nothing"
        return DefinitionsError(f"{self.path}.{name}", f"expected {expected}, got {seen}")


def _read_exchange(fields: Fields, vhost: str) -> Exchange:
    return Exchange(
        name=fields.text("name"),
        type=fields.text("type", "direct"),
        durable=fields.flag("durable", default=True),
        auto_delete=fields.flag("auto_delete", default=False),
        internal=fields.flag("internal", default=False),
        arguments=fields.table("arguments"),
        vhost=fields.text("vhost", vhost),
        extra=fields.rest(keep="internal"),  # rabbitmqctl omits it if false, the HTTP API does not
    )


def _write_exchange(exchange: Exchange) -> dict[str, Any]:
    return {
        **to_plain(exchange.extra),
        "name": exchange.name,
        "type": exchange.type,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        **({"internal": exchange.internal} if exchange.internal or "internal" in exchange.extra else {}),
        "arguments": table_to_json(exchange.arguments),
    }


def _read_queue(fields: Fields, vhost: str) -> Queue:
    return Queue(
        name=fields.text("name"),
        durable=fields.flag("durable", default=True),
        auto_delete=fields.flag("auto_delete", default=False),
        exclusive=fields.flag("exclusive", default=False),
        arguments=fields.table("arguments"),
        vhost=fields.text("vhost", vhost),
        extra=fields.rest(),
    )


def _write_queue(queue: Queue) -> dict[str, Any]:
    return {
        **to_plain(queue.extra),
        "name": queue.name,
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        **({"exclusive": True} if queue.exclusive else {}),
        "arguments": table_to_json(queue.arguments),
    }


def _read_binding(fields: Fields, vhost: str) -> Binding:
    return Binding(
        source=fields.text("source"),
        destination=fields.text("destination"),
        destination_type=fields.text("destination_type", "queue"),  # type: ignore[arg-type]  # Binding refuses others
        routing_key=fields.text("routing_key", ""),
        arguments=fields.table("arguments"),
        vhost=fields.text("vhost", vhost),
        created_at=fields.moment("created_at"),
        metadata=fields.table("metadata"),
        extra=fields.rest(),
    )


def _write_binding(binding: Binding) -> dict[str, Any]:
    return {
        **to_plain(binding.extra),
        "source": binding.source,
        "destination": binding.destination,
        "destination_type": binding.destination_type,
        "routing_key": binding.routing_key,
        "arguments": table_to_json(binding.arguments),
        **({"created_at": binding.created_at.isoformat()} if binding.created_at else {}),
        **({"metadata": table_to_json(binding.metadata)} if binding.metadata else {}),
    }


def _read_policy(fields: Fields, vhost: str) -> Policy:
    pattern, target = fields.text("pattern"), fields.text("apply-to", "all")
    require_expression(pattern, f"{fields.path}.pattern")
    if target not in POLICY_TARGETS:
        raise DefinitionsError(f"{fields.path}.apply-to", f"expected one of {', '.join(POLICY_TARGETS)}, got {target!r}")
    return Policy(
        name=fields.text("name"),
        pattern=pattern,
        definition=fields.table("definition"),
        apply_to=target,
        priority=fields.integer("priority", 0),
        vhost=fields.text("vhost", vhost),
        extra=fields.rest(),
    )


def require_expression(text: str, path: str) -> str:
    """Return a regular expression, or raise if it is not valid."""
    try:
        RegularExpression(text)
    except InvalidValueError as error:
        raise DefinitionsError(path, str(error)) from error
    return text


def _write_policy(policy: Policy) -> dict[str, Any]:
    return {
        **to_plain(policy.extra),
        "name": policy.name,
        "pattern": policy.pattern,
        "definition": table_to_json(policy.definition),
        "apply-to": policy.apply_to,
        "priority": policy.priority,
    }


def _entries(document: Mapping[str, Any], section: str, reader: Callable[[Fields], T]) -> list[T]:
    entries = document.get(section, [])
    if not isinstance(entries, list | tuple):
        raise DefinitionsError(section, f"expected an array, got {describe(entries)}")
    return [_checked(f"{section}[{index}]", reader, entry) for index, entry in enumerate(entries)]


def _checked(path: str, reader: Callable[[Fields], T], entry: object) -> T:
    """Read an entry; add its path to an error that lacks one."""
    try:
        return reader(Fields(entry, path))
    except DefinitionsError:
        raise
    except InvalidValueError as error:
        raise DefinitionsError(path, str(error)) from error


def _unique(section: str, parts: list[E]) -> list[E]:
    """Drop duplicate entries; raise DefinitionsError if two entries with the same name differ."""
    first: dict[tuple[str, str], tuple[int, E]] = {}
    for index, part in enumerate(parts):
        assert not isinstance(part, Binding)
        position, earlier = first.setdefault((part.vhost, part.name), (index, part))
        if earlier != part:
            raise DefinitionsError(
                f"{section}[{index}]",
                f"{part.name!r} in vhost {part.vhost!r} is defined differently at {section}[{position}]",
            )
    return [part for _, part in first.values()]


def _require_valid_rules(exchanges: Iterable[Exchange], bindings: Iterable[Binding]) -> None:
    types = {(exchange.vhost, exchange.name): exchange.type for exchange in exchanges}
    for index, binding in enumerate(bindings):
        type_ = types.get((binding.vhost, binding.source))
        field = "routing_key" if type_ == CONSISTENT_HASH else "arguments.x-match"
        try:
            if type_ == CONSISTENT_HASH:
                weight_of(binding.routing_key)
            elif type_ == "headers" or binding.source in ("amq.headers", "amq.match"):
                require_x_match(binding.arguments)
        except InvalidValueError as error:
            raise DefinitionsError(f"bindings[{index}].{field}", str(error)) from error


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise DefinitionsError(ROOT, f"expected a number of at most 64 bits, got {text[:40]}")
    return number


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise DefinitionsError(ROOT, f"expected an integer of at most 64 bits, got one with {len(text)} digits")
    return int(text)


def _refuse_constant(name: str) -> object:
    raise DefinitionsError(ROOT, f"expected JSON, got {name}, which is not valid JSON")
