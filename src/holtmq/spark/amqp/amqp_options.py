"""The options of `format("amqp")`, `archive`, `publish` and `replay`: typed, and checked on the driver before a job runs.

An option is a keyword in snake_case for a Python function (`password_env=`), and a string with a name in camelCase for Spark
(`.option("passwordEnv", …)`). Both end up in the same classes.

Spark shows no options of a Python data source in plans, events or logs (tests/spark/test_credentials.py verifies this). But
notebooks and scripts show the options they contain: use `passwordEnv` or `passwordFile` there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias
from urllib.parse import urlsplit

from holtmq.client.address import Address, Tls, without_password
from holtmq.client.blocking_connection import BlockingConnection
from holtmq.client.publisher import RETRIES, WINDOW
from holtmq.errors import InvalidValueError
from holtmq.spark.filesystems import REMOTE, filesystem_of

AckMode: TypeAlias = Literal["commit", "spool"]
OnReturn: TypeAlias = Literal["fail", "count"]
MAX_PREFETCH = 65_535
"""The largest prefetch count that AMQP can represent."""
PREFETCH = MAX_PREFETCH
RECEIVERS = 2
SEGMENT_ROWS = 32_768
LONGEST_PUBLISHER = 200
"""Characters of a publisher's name. The id of the query and the partition are added, and a stream accepts 255 in all."""
SPARKS_OWN = frozenset({"path", "checkpointlocation", "paths"})
"""Options that Spark itself passes to a data source."""


def _text(*, default: str | None = None, is_secret: bool = False) -> Any:
    return field(default=default, repr=not is_secret, metadata={"kind": str})


def _required_text(*, is_secret: bool = False) -> Any:
    return field(repr=not is_secret, metadata={"kind": str, "is_required": True})


def _number(default: int | None, least: int = 0, most: int | None = None) -> Any:
    return field(default=default, metadata={"kind": int, "least": least, "most": most})


def _flag(*, default: bool) -> Any:
    return field(default=default, metadata={"kind": bool})


def _choices(*choices: str) -> dict[str, Any]:
    return {"kind": str, "choices": choices}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """A group of options. Its fields carry the checks."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is None and not each.metadata.get("is_required"):
                continue
            object.__setattr__(self, each.name, _checked(each, value, each.name))

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Read this group from the options of Spark, whose names are case-insensitive."""
        texts = {name.lower(): value for name, value in given.items()}
        values = {}
        for each in fields(cls):
            name = _spark_name(each.name)
            if name.lower() in texts:
                values[each.name] = _checked(each, texts[name.lower()], f"option {name!r}")
            elif each.metadata.get("is_required"):
                raise InvalidValueError(f"option {name!r} is missing: expected a value such as {EXAMPLES[each.name]!r}")
        return cls(**values)

    @classmethod
    def names(cls) -> set[str]:
        """Return the names of the options as Spark has them."""
        return {_spark_name(each.name) for each in fields(cls)}

    def to_spark(self) -> dict[str, str]:
        """Return the options of this group as Spark passes them to a data source."""
        values = {_spark_name(each.name): getattr(self, each.name) for each in fields(self)}
        return {name: str(value) for name, value in values.items() if value is not None}


EXAMPLES = {"url": "amqp://127.0.0.1:5672/%2F", "starting_offsets": "earliest"}


def _spark_name(name: str) -> str:
    return re.sub("_(.)", lambda found: found[1].upper(), name)


def _checked(option: Field[Any], value: object, name: str) -> Any:
    """Return the value as the type of the option. Strings are parsed, because Spark passes all options as strings."""
    kind = option.metadata["kind"]
    if kind is bool:
        return _checked_flag(value, name)
    if kind is int:
        return _checked_number(value, name, option.metadata["least"], option.metadata["most"])
    return _checked_text(value, name, option.metadata.get("choices", ()))


def _checked_flag(value: object, name: str) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise InvalidValueError(f"{name} must be true or false, got {value!r}")


def _checked_number(value: object, name: str, least: int, most: int | None) -> int:
    number = int(value) if isinstance(value, str) and re.fullmatch(r"-?\d+", value) else value
    if not isinstance(number, int) or isinstance(number, bool) or number < least or (most is not None and number > most):
        bounds = f"from {least} to {most}" if most is not None else f"of at least {least}"
        raise InvalidValueError(f"{name} must be a whole number {bounds}, got {value!r}")
    return number


def _checked_text(value: object, name: str, choices: tuple[str, ...]) -> str:
    if choices and value not in choices:
        raise InvalidValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    if not isinstance(value, str):
        raise InvalidValueError(f"{name} must be a string, got {type(value).__name__}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions(Options):
    """The address of a broker and how to log in. Each process that connects looks up the password itself."""

    url: str = _required_text(is_secret=True)
    user: str | None = _text()
    password: str | None = _text(is_secret=True)
    password_env: str | None = _text()
    password_file: str | None = _text()
    ca_file: str | None = _text()
    cert_file: str | None = _text()
    key_file: str | None = _text()
    verify: bool = _flag(default=True)
    announce: str | None = _text()
    """The HTTP API that lists the run (default: that of the broker), or "false"."""

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        Address.parse(self.url)  # raises the error where the user sees it: on the driver

    def connect(self, name: str) -> BlockingConnection:
        """Open a connection. Runs on the driver and on the executors."""
        return BlockingConnection(self.address(), name=name)

    def address(self) -> Address:
        """Return the address with the user, the password and the certificates to use."""
        address = Address.parse(self.url)
        if address.tls is not None:
            address = replace(address, tls=self.tls())
        user = address.user if self.user is None else self.user
        return replace(address, user=user, password=self._password(address.password))

    def tls(self) -> Tls:
        """Return the certificates to use."""
        return Tls(self.ca_file, self.cert_file, self.key_file, verify=self.verify)

    def _password(self, default: str) -> str:
        if self.password_file is not None:
            try:
                return Path(self.password_file).read_text().rstrip("\n")
            except OSError as error:
                raise InvalidValueError(
                    f"the password file {self.password_file!r} cannot be read: {error.strerror}. "
                    "It must exist on every machine that connects to the broker"
                ) from error
        if self.password_env is not None:
            if self.password_env not in os.environ:
                raise InvalidValueError(
                    f"the environment variable {self.password_env!r}, which should contain the password, is not set. "
                    "It must be set in every process that connects to the broker"
                )
            return os.environ[self.password_env]
        return default if self.password is None else self.password


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions(Options):
    """Which queues to read: one by its name, several by their names, or all whose names match a regular expression."""

    queue: str | None = _text()
    queues: str | None = _text()
    """Names, separated by commas."""
    queue_pattern: str | None = _text()
    management_url: str | None = _text()
    """The HTTP API that lists the queues of a pattern (default: port 15672 of the broker)."""

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        given = [name for name in ("queue", "queues", "queue_pattern") if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(_spark_name(name) for name in given) or "none"
            raise InvalidValueError(
                f"expected one of the options queue (such as 'orders'), queues ('orders,returns') and queuePattern "
                f"('orders-.*'), got {found}"
            )
        if self.management_url is not None and self.queue_pattern is None:
            raise InvalidValueError("option 'managementUrl' is only used with queuePattern: remove it")
        if self.queue_pattern is not None:
            _require_pattern(self.queue_pattern)
        if self.management_url is not None:
            _require_http(self.management_url)
        if self.queue == "":
            raise InvalidValueError("option 'queue' must be the name of a queue, got ''")
        if not all(self.named()) or len({*self.named()}) < len(self.named()):
            raise InvalidValueError(f"option 'queues' must be different names separated by commas, got {self.queues!r}")

    @classmethod
    def choose(
        cls, queue: str | Sequence[str] | None, queue_pattern: str | None = None, management_url: str | None = None
    ) -> QueueOptions:
        """Return the options for a name, for several names, or for a pattern."""
        names = [queue] if isinstance(queue, str) else list(queue or ())
        with_comma = [name for name in names if "," in name]
        if len(names) > 1 and with_comma:
            raise InvalidValueError(
                f"the queue {with_comma[0]!r} has a comma in its name: read it alone, or by a queue_pattern"
            )
        alone, several = (names[0], None) if len(names) == 1 else (None, ",".join(names) or None)
        return QueueOptions(queue=alone, queues=several, queue_pattern=queue_pattern, management_url=management_url)

    def __str__(self) -> str:
        return self.queue_pattern or ", ".join(self.named())

    def named(self) -> tuple[str, ...]:
        """Return the names that were given. None were if a pattern was."""
        if self.queue is not None:
            return (self.queue,)
        return () if self.queues is None else tuple(name.strip() for name in self.queues.split(","))


def _require_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise InvalidValueError(
            f"option 'queuePattern' must be a regular expression such as 'orders-.*', got {pattern!r}: {error}"
        ) from error


def _require_http(url: str) -> None:
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        found = without_password(url)
        raise InvalidValueError(
            f"option 'managementUrl' must be the URL of an HTTP API such as http://127.0.0.1:15672, got {found!r}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions(QueueOptions):
    """How a batch job reads queues."""

    limit: int = _number(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions(QueueOptions):
    """How a stream reads queues."""

    receivers: int = _number(RECEIVERS, least=1)
    prefetch: int = _number(PREFETCH, least=1, most=MAX_PREFETCH)
    max_messages_per_trigger: int | None = _number(None, least=1)
    segment_rows: int = _number(SEGMENT_ROWS, least=1)
    ack: AckMode = field(default="commit", metadata=_choices("commit", "spool"))
    spool: str | None = _text()

    def __post_init__(self) -> None:
        QueueOptions.__post_init__(self)
        if self.ack == "spool" and self.spool is None:
            raise InvalidValueError("ack=spool requires the option 'spool': expected a folder that survives the application")
        if self.spool is not None:
            _require_folder(self.spool)

    @property
    def batch_rows(self) -> int:
        """The maximum size of a micro-batch: as given, or half of what the receivers prefetch.

        A kept spool is acknowledged when a batch is planned, so that the receivers go on meanwhile: then it is all of it.
        """
        window = self.prefetch * self.receivers
        return self.max_messages_per_trigger or max(1, window if self.keeps_spool else window // 2)

    @property
    def keeps_spool(self) -> bool:
        """Whether the spool survives the stream."""
        return self.ack == "spool"


def _require_folder(spool: str) -> None:
    if not spool:
        raise InvalidValueError("option 'spool' must be a folder, got ''")
    if REMOTE.match(spool):
        return  # Arrow would connect to it
    try:
        filesystem_of(spool)
    except InvalidValueError as error:
        raise InvalidValueError(f"option 'spool': {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishOptions(Options):
    """How rows are published."""

    exchange: str | None = _text()
    mandatory: bool = _flag(default=True)
    on_return: OnReturn = field(default="fail", metadata=_choices("fail", "count"))
    persistent: bool = _flag(default=True)
    window: int = _number(WINDOW, least=1)
    retries: int = _number(RETRIES)
    rate: int = _number(0)
    mark: str | None = _text()
    """Value of the header `x-holtmq-replay` of each message."""
    publisher: str | None = _text()
    """Name under which a HoltMQ stream recognises messages that are published again."""
    keep_numbers: bool = _flag(default=False)
    """Whether messages keep the headers `x-publisher` and `x-publishing-id` that they have."""

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        if self.publisher is not None and not 0 < len(self.publisher) <= LONGEST_PUBLISHER:
            raise InvalidValueError(f"publisher must have 1 to {LONGEST_PUBLISHER} characters, got {len(self.publisher)}")
        if self.publisher is not None and self.keep_numbers:
            raise InvalidValueError("expected either a publisher, which numbers messages, or keep_numbers, got both")


def require_known(given: Mapping[str, str], *groups: type[Options]) -> None:
    """Raise InvalidValueError if an option belongs to none of the groups."""
    known = {name for group in groups for name in group.names()}
    lower_case = {name.lower() for name in known} | SPARKS_OWN
    for name in given:
        if name.lower() not in lower_case:
            raise InvalidValueError(f"unknown option {name!r}: expected one of {', '.join(sorted(known))}")
