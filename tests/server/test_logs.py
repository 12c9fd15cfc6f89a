"""Logs: what clients choose cannot forge a line or control a terminal."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from holtmq.server.logs import MAX_CHARACTERS, JsonFormatter, TextFormatter
from tests.amqp_client import Amqp, ClosedError
from tests.management.http import Http, segment
from tests.server.process import broker_process

FORGED = "2026-01-01T00:00:00.000+00:00 info    forged"
HOSTILE = ["a\n" + FORGED, "a\r" + FORGED, "\x1b[2J", "\x9b31m", "a\x00b", "\u2028" + FORGED, "\u202egnp.exe", "\udcff", "\x7f"]


def record_of(text: str, error: BaseException | None = None) -> logging.LogRecord:
    exc_info = (type(error), error, None) if error is not None else None
    return logging.LogRecord("holtmq", logging.INFO, __file__, 1, "user %s", (text,), exc_info)


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_an_event_is_one_printable_line(formatter: logging.Formatter, text: str) -> None:
    assert formatter.format(record_of(text)).isprintable()


@pytest.mark.parametrize("text", HOSTILE)
def test_the_lines_of_a_traceback_are_indented(text: str) -> None:
    first, *rest = TextFormatter().format(record_of("x", ValueError(text))).split("\n")
    assert all(line.startswith("    ") and line.isprintable() for line in rest)
    assert first.endswith("user x")


def test_ordinary_text_stays_as_it_is() -> None:
    assert TextFormatter().format(record_of("größe 🦦 'q'")).endswith("user größe 🦦 'q'")
    assert json.loads(JsonFormatter().format(record_of("größe\n")))["event"] == "user größe\n"


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_a_long_text_is_cut(formatter: logging.Formatter) -> None:
    assert len(formatter.format(record_of("x" * 1_000_000))) < MAX_CHARACTERS + 300


def test_names_and_paths_of_clients_do_not_forge_lines(tmp_path: Path) -> None:
    name = f"a\n{FORGED}\x1b[2J"
    with broker_process(tmp_path / "a.db", "--http-port", "0") as broker:
        http = Http(f"http://127.0.0.1:{broker.http_port}")
        assert http.call("PUT", f"/api/vhosts/{segment(name)}").status == 201
        assert http.call("PUT", f"/api/users/{segment(name)}", {"password": "p", "tags": "administrator"}).status == 201
        full = {"configure": ".*", "write": ".*", "read": ".*"}
        assert http.call("PUT", f"/api/permissions/{segment(name)}/{segment(name)}", full).status in (201, 204)
        Amqp(broker.port, user=name, password="p", vhost=name).close()
        with pytest.raises(ClosedError):
            Amqp(broker.port, user=name, password="wrong")
        http.call("GET", f"/{segment(name)}")
        http.call("GET", "/api/whoami", user_agent="x\x1b[2J")
        code, log = broker.stop()
    assert code == 0
    assert "entered vhost" in log
    assert "\x1b" not in log
    assert not any(line.startswith(FORGED) for line in log.splitlines())


def test_a_log_that_nobody_reads_does_not_stop_the_broker(tmp_path: Path) -> None:
    """Each connection logs a line: the pipe of this process is full after some hundreds of them."""
    with broker_process(tmp_path / "b.db", "--durability", "off") as broker:
        for _ in range(1000):
            with Amqp(broker.port) as amqp:
                amqp.drop()
        with Amqp(broker.port) as amqp:
            amqp.channel().declare("q")
