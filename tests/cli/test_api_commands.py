"""The commands that use the HTTP API of a running broker."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest
import trustme

from holtmq.cli.main import main
from tests.deadline import PATIENCE_S, eventually
from tests.management.conftest import Node, running_node


class Cli:
    """Runs commands against one broker, in this process."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._url = url
        self._capsys = capsys

    def __call__(self, *arguments: str, code: int = 0, url: str | None = None) -> str:
        returned = main([*arguments, "--http-url", url or self._url])
        output = self._capsys.readouterr()
        assert returned == code, output
        if code == 0:
            assert output.err == ""
        return output.out if returned == 0 else output.out + output.err

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def node() -> Iterator[Node]:
    with running_node() as node:
        yield node


@pytest.fixture
def cli(node: Node, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(node.http.base.replace("://", "://guest:guest@"), capsys)


def test_a_topology_by_hand(cli: Cli) -> None:
    assert cli("declare", "exchange", "orders", "--type", "topic") == "Exchange orders created.\n"
    assert cli("declare", "exchange", "orders", "--type", "topic") == "Exchange orders already exists.\n"
    cli("declare", "queue", "a/b %", "-a", "x-max-length=5", "-a", "x-overflow=reject-publish")
    cli("bind", "orders", "a/b %", "k.#", "-a", "x=1")
    cli("bind", "orders", "amq.fanout", "--to", "exchange")
    (queue,) = cli.json("list", "queues")
    assert queue["arguments"] == {"x-max-length": 5, "x-overflow": "reject-publish"}
    assert cli.json("list", "queues", "name", "arguments.x-max-length") == [{"name": "a/b %", "arguments.x-max-length": 5}]
    assert "k.#" in cli("list", "bindings")
    missing = cli("unbind", "orders", "a/b %", "k.#", code=1)
    assert "it is bound with arguments {'x': 1}" in missing
    cli("unbind", "orders", "a/b %", "k.#", "-a", "x=1")
    cli("delete", "queue", "a/b %", "--if-empty")
    cli("delete", "exchange", "orders", "--if-unused", code=1)
    cli("delete", "exchange", "orders")
    assert cli("list", "queues") == "No queues.\n"
    assert "no queue 'none'" in cli("delete", "queue", "none", code=1)


def test_a_super_stream_is_declared_once_and_grows(cli: Cli) -> None:
    declare = ("declare", "super-stream", "events", "--max-age", "7D", "--max-bytes", "1000000", "--partitions")
    assert cli(*declare, "2") == "Super stream events with 2 partitions created.\n"
    assert cli(*declare, "2") == "Super stream events with 2 partitions already exists.\n"
    assert cli(*declare, "4") == "Super stream events with 4 partitions created.\n"
    (exchange,) = (each for each in cli.json("list", "exchanges") if each["name"] == "events")
    assert (exchange["type"], exchange["durable"], exchange["arguments"]) == (
        "x-consistent-hash",
        True,
        {"x-super-stream": True},
    )
    queues = {each["name"]: each["arguments"] for each in cli.json("list", "queues")}
    arguments = {"x-max-age": "7D", "x-max-length-bytes": 1_000_000, "x-queue-type": "stream"}
    assert queues == {f"events-{n}": arguments for n in range(4)}
    bound = [(each["destination"], each["routing_key"]) for each in cli.json("list", "bindings") if each["source"]]
    assert sorted(bound) == [(name, "1") for name in sorted(queues)]
    fewer = cli(*declare, "3", code=1)
    assert "no bindings but those of its partitions, of which 3 are declared; also bound: events-3" in fewer
    cli("declare", "exchange", "other", "--type", "topic")
    assert "inequivalent arg 'type'" in cli("declare", "super-stream", "other", "--partitions", "1", code=1)
    assert len(cli.json("list", "queues")) == 4
    for number in range(20):
        cli("publish", "events", f"customer.{number % 10}", f"{number}")
    read = [cli.json("get", name, "--offset", "first", "--count", "20") for name in queues]
    assert sum(map(len, read)) == 20
    keys = [[message["routing_key"] for message in messages] for messages in read]
    assert all(sorted(set(some)) == sorted(some)[::2] for some in keys)  # both messages of a key, in one partition


def test_a_weight_must_be_a_number(cli: Cli) -> None:
    cli("declare", "exchange", "x", "--type", "x-consistent-hash", "-a", "hash-header=customer")
    cli("declare", "queue", "q")
    assert "must be an integer from 1 to 4294967295, got 'heavy'" in cli("bind", "x", "q", "heavy", code=1)
    cli("bind", "x", "q", "3")
    assert "slot 0, which belongs to queue 'q' (weight 3 of 3)" in " ".join(cli("explain", "x", "k").split())


def test_messages_there_and_back(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for queue in ("q", "other"):
        cli("declare", "queue", queue)
    cli("publish", "", "q", "hello", "--header", "vip=true", "--property", "content_type=text/plain")
    assert "it reached no queue" in cli("publish", "amq.topic", "nowhere", "x", code=3)
    stdin = io.TextIOWrapper(io.BytesIO(b"\x00\xff"))
    monkeypatch.setattr(sys, "stdin", stdin)
    cli("publish", "", "q")
    first, second = cli.json("get", "q", "--count", "5")
    assert (first["payload"], first["properties"]["headers"]) == ("hello", {"vip": True})
    assert (second["payload"], second["payload_encoding"]) == ("AP8=", "base64")
    assert "base64 AP8=" in cli("get", "q", "--count", "5")
    assert cli("move", "q", "other", "--count", "1") == "1 message moved from q to other.\n"
    assert cli.json("get", "other", "--ack-mode", "remove")[0]["payload"] == "hello"
    assert "No messages." in cli("get", "other", code=1)
    cli("purge", "q", "--yes")
    assert cli.json("list", "queues", "messages") == [{"messages": 0}, {"messages": 0}]


def test_a_stream_is_read_from_anywhere(cli: Cli) -> None:
    cli("declare", "queue", "events", "-a", "x-queue-type=stream")
    for body in ("zero", "one", "two"):
        cli("publish", "", "events", body)
    assert [each["payload"] for each in cli.json("get", "events", "--count", "2")] == ["zero", "one"]
    assert [each["offset"] for each in cli.json("get", "events", "--offset", "1", "--count", "9")] == [1, 2]
    assert [each["payload"] for each in cli.json("get", "events", "--offset", "last")] == ["two"]
    assert [each["payload"] for each in cli.json("get", "events", "--from", "1h")] == ["zero"]
    assert "No messages." in cli("get", "events", "--from", "2999-01-31T12:00", code=1)
    shown = cli("get", "events", "--offset", "2")
    assert "two" in shown
    assert "offset" in shown
    cli("declare", "queue", "q")
    listed = cli.json("list", "queues", "name", "first_offset", "last_offset", "--sort", "name")
    assert [tuple(each.values()) for each in listed] == [("events", 0, 2), ("q", None, None)]
    assert "queue 'q' is not a stream" in cli("get", "q", "--offset", "1", code=1)


def test_lists_show_what_a_stream_holds_and_where_its_consumers_are(cli: Cli, node: Node) -> None:
    cli("declare", "queue", "events", "-a", "x-queue-type=stream")
    for body in ("zero", "one", "two"):
        cli("publish", "", "events", body)
    columns = ("first_offset", "last_offset", "segments", "message_bytes")
    (listed,) = cli.json("list", "queues", *columns)
    assert listed == {column: node.http.get("/api/queues/%2F/events")[column] for column in columns}
    assert (listed["first_offset"], listed["last_offset"]) == (0, 2)
    assert 1 <= listed["segments"] <= 3
    assert listed["message_bytes"] > len("zeroonetwo")
    with node.connect() as amqp:
        channel = amqp.channel()
        channel.qos(1)
        channel.consume("events", "reader", arguments={"x-stream-offset": "first"})
        channel.bodies(1)
        (consumer,) = cli.json("list", "consumers", "queue.name", "consumer_tag", "offset", "lag")
    assert [*consumer.values()] == ["events", "reader", 1, 2]


def test_purge_is_refused_without_confirmation(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("declare", "queue", "q")
    cli("publish", "", "q", "hello")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert "add --yes to run it anyway" in cli("purge", "q", code=2)
    assert cli.json("list", "queues", "messages") == [{"messages": 1}]
    assert cli("purge", "q", "--yes") == "Queue q purged.\n"
    assert cli.json("list", "queues", "messages") == [{"messages": 0}]


@pytest.mark.parametrize(("answer", "code", "left"), [(b"n\n", 1, 1), (b"y\n", 0, 0)])
def test_purge_asks_in_a_terminal(node: Node, answer: bytes, code: int, left: int) -> None:
    node.http.put("/api/queues/%2F/q")
    node.http.post("/api/exchanges/%2F/amq.default/publish", MESSAGE)
    main_end, terminal = pty.openpty()
    command = [sys.executable, "-m", "holtmq", "purge", "q", "--http-url", node.http.base.replace("://", "://guest:guest@")]
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    _read_until(main_end, b"Remove all ready messages from queue q? [y/N]: ")
    os.write(main_end, answer)
    assert process.wait(PATIENCE_S) == code
    os.close(main_end)
    assert node.http.get("/api/queues/%2F/q")["messages"] == left


MESSAGE = {"routing_key": "q", "payload": "hello", "payload_encoding": "string", "properties": {}}


def test_the_old_name_of_an_option_still_works(cli: Cli, node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    url = node.http.base.replace("://", "://guest:guest@")
    assert main(["list", "queues", "--url", url]) == 0
    assert main(["explain", "", "q", "--url", url]) == 0
    assert main(["list", "--help"]) == 0
    told = capsys.readouterr().out
    assert "--http-url URL" in told
    assert "--url" not in told


def test_the_url_can_come_from_the_environment(
    node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("HOLTMQ_HTTP_URL", "HOLTMQ_URL"):
        with monkeypatch.context() as environment:
            environment.setenv(variable, node.http.base.replace("://", "://guest:guest@"))
            assert main(["list", "queues"]) == 0
    assert capsys.readouterr().out == "No queues.\n" * 2


class Recorder(BaseHTTPRequestHandler):
    """An HTTP API that has one binding, and keeps the bodies that it gets."""

    bodies: ClassVar[list[Any]] = []
    binding: ClassVar[dict[str, Any]] = {
        "source": "x",
        "destination": "q",
        "created_at": "2026-01-31T12:00:00Z",
        "metadata": {"owner": "sales"},
    }

    def do_GET(self) -> None:
        self._answer(200, json.dumps([self.binding]).encode())

    def do_POST(self) -> None:
        self.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self._answer(201, b"")

    def log_message(self, *_: object) -> None:
        """Keep stderr empty."""

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def recorder() -> Iterator[str]:
    Recorder.bodies.clear()
    with HTTPServer(("127.0.0.1", 0), Recorder) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_metadata_of_a_binding_is_sent(recorder: str, capsys: pytest.CaptureFixture[str]) -> None:
    cli = Cli(recorder, capsys)
    cli("bind", "amq.topic", "q", "k", "--metadata", "owner=sales", "--metadata", "ticket=7")
    assert cli("bind", "amq.topic", "q", "k") == "Queue q bound to exchange amq.topic with key 'k'.\n"
    assert Recorder.bodies == [
        {"routing_key": "k", "arguments": {}, "metadata": {"owner": "sales", "ticket": 7}},
        {"routing_key": "k", "arguments": {}},
    ]


def test_list_shows_when_a_binding_was_made_and_its_metadata(recorder: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = Cli(recorder, capsys)("list", "bindings")
    assert "2026-01-31T12:00:00Z" in shown
    assert "owner=sales" in shown


def test_names_and_properties_are_taken_as_they_are(cli: Cli) -> None:
    for name in ("[/x]", "a[bold]b", "n:smile:"):
        assert cli("declare", "queue", name) == f"Queue {name} created.\n"
    cli("publish", "", "[/x]", "hello", "--property", "expiration=60000", "--property", "priority=3")
    (message,) = cli.json("get", "[/x]")
    assert (message["properties"]["expiration"], message["properties"]["priority"]) == ("60000", 3)
    assert cli.json("list", "policies", "--name", "zzz") == []


def test_users_permissions_policies_and_vhosts(cli: Cli, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("declare", "vhost", "v", "--description", "for tests")
    monkeypatch.setenv("HOLTMQ_NEW_PASSWORD", "old")
    cli("users", "add", "bob", "--tags", "monitoring")
    cli("permissions", "set", "bob", "^a", "-V", "v")
    monkeypatch.setenv("HOLTMQ_NEW_PASSWORD", "new")
    cli("users", "change-password", "bob")
    cli("users", "set-tags", "bob", "management", "policymaker")
    assert node.http.as_user("bob:new").get("/api/whoami")["tags"] == ["management", "policymaker"]
    assert {"user": "bob", "vhost": "v", "configure": "^a", "write": ".*", "read": ".*"} in cli.json("permissions", "list")
    assert "bob" in cli("users", "list")
    cli("policies", "set", "p", "^q", "max-length=5", "overflow=reject-publish", "--priority", "2")
    assert cli.json("policies", "list")[0]["definition"] == {"max-length": 5, "overflow": "reject-publish"}
    assert "expected one of message-ttl" in cli("policies", "set", "p", "^q", "colour=red", code=1)
    cli("policies", "clear", "p")
    cli("permissions", "clear", "bob", "-V", "v")
    cli("users", "delete", "bob")
    cli("delete", "vhost", "v")
    assert cli.json("list", "users", "name") == [{"name": "guest"}]


def test_definitions_explain_and_status(cli: Cli, node: Node, tmp_path: Path) -> None:
    cli("declare", "queue", "passing", "--transient")
    cli("declare", "queue", "lasting")
    cli("bind", "amq.topic", "passing", "a.*")
    assert "passing" in cli("explain", "amq.topic", "a.b")
    assert json.loads(cli("explain", "amq.topic", "a.b", "--json"))["queues"] == ["passing"]
    file = tmp_path / "definitions.json"
    cli("definitions", "export", str(file))
    assert [queue["name"] for queue in json.loads(file.read_text())["queues"]] == ["lasting"]
    assert file.stat().st_mode & 0o777 == 0o600
    cli("delete", "queue", "lasting")
    cli("definitions", "import", str(file))
    assert node.http.get("/api/queues/%2F/lasting")["name"] == "lasting"
    file.write_text('{"queues": 3}')
    assert "queues: expected an array" in cli("definitions", "import", str(file), code=1)
    assert json.loads(cli("definitions", "export", "-V", "/"))["queues"][0]["name"] == "lasting"
    shown = cli("status")
    assert "HoltMQ" in shown
    assert "listeners" in shown
    assert re.search(r"^role +active$", shown, re.MULTILINE)
    found = cli.json("status")
    assert (found["role"], found["object_totals"]["queues"]) == ("active", 2)


def test_connections_are_listed_and_closed(cli: Cli, node: Node) -> None:
    amqp = node.connect()
    (connection,) = cli.json("list", "connections", "name")
    cli("delete", "connection", connection["name"])
    amqp.drop()
    assert cli("list", "connections") == "No connections.\n"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://guest:wrong@{host}", "Login failed"),
        ("http://127.0.0.1:1", "cannot reach the HTTP API at http://127.0.0.1:1"),
        ("http://[", "expected a URL such as"),
        ("nonsense", "expected a URL such as http://user:password@host:15672, got 'nonsense'"),
        ("ftp://user:secret@host", "got 'ftp://host'"),
    ],
)
def test_what_goes_wrong_is_told_in_one_line(cli: Cli, node: Node, url: str, words: str) -> None:
    host = node.http.base.removeprefix("http://")
    code = 2 if "URL" in words or "ftp" in words else 1
    told = cli("list", "queues", url=url.format(host=host), code=code)
    assert words in told
    assert len(told.splitlines()) == 1
    assert "secret" not in told


def test_https_with_an_authority(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority = trustme.CA()
    pem, ca = str(tmp_path / "server.pem"), str(tmp_path / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(pem)
    authority.cert_pem.write_to_path(ca)
    with running_node(http_port=-1, https_port=0, tls_certificate=pem, tls_key=pem) as node:
        cli = Cli(node.http.base.replace("://", "://guest:guest@"), capsys)
        assert "CERTIFICATE_VERIFY_FAILED" in cli("list", "queues", code=1)
        assert cli("list", "queues", "--ca", ca) == "No queues.\n"


def test_top_shows_the_busiest_queues(cli: Cli) -> None:
    for queue in ("calm", "busy"):
        cli("declare", "queue", queue)
    cli("publish", "", "busy", "x")
    lines = [line.split() for line in cli("top", "--once").splitlines()]
    assert [line[0] for line in lines[-2:]] == ["busy", "calm"]


def test_top_is_live_in_a_terminal_and_ends_with_q(node: Node) -> None:
    node.http.put("/api/queues/%2F/seen")
    url = node.http.base.replace("://", "://guest:guest@")
    main_end, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "24"}
    command = [sys.executable, "-m", "holtmq", "top", "--interval", "0.2", "--http-url", url]
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    shown = _read_until(main_end, b"seen")
    os.write(main_end, b"n")
    shown += _read_until(main_end, "queue ▾".encode())
    os.write(main_end, b"q")
    assert process.wait(20) == 0
    os.close(main_end)
    assert b"HoltMQ" in shown


def _read_until(terminal: int, wanted: bytes) -> bytes:
    shown = bytearray()

    def is_shown() -> bool:
        if select.select([terminal], [], [], 0)[0]:
            shown.extend(os.read(terminal, 65_536))
        return wanted in shown

    eventually(is_shown, f"{wanted!r} on the terminal")
    return bytes(shown)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "_HOLTMQ_COMPLETE" in capsys.readouterr().out


def test_bash_completes_what_there_is() -> None:
    environment = {**os.environ, "_HOLTMQ_COMPLETE": "bash_complete", "COMP_WORDS": "holtmq list que", "COMP_CWORD": "2"}
    command = [str(Path(sys.executable).with_name("holtmq"))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout.split() == ["plain,queues"]


def test_a_new_password_comes_from_a_file_a_variable_stdin_or_the_terminal(
    cli: Cli, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "password"
    path.write_text("from file\n")
    cli("users", "add", "a", "--tags", "management", "--new-password-file", str(path))
    monkeypatch.setenv("HOLTMQ_NEW_PASSWORD", "from variable")
    cli("users", "add", "b", "--tags", "management")
    monkeypatch.setattr("sys.stdin", io.StringIO("from stdin\n"))
    cli("users", "change-password", "b", "--new-password-file", "-")
    for login in ("a:from file", "b:from stdin"):
        assert node.http.as_user(login).call("GET", "/api/whoami").status == 200
    path.write_text("two\nlines\n")
    assert "the only line of" in cli("users", "add", "c", "--new-password-file", str(path), code=1)
    assert "cannot read a password from" in cli("users", "add", "c", "--new-password-file", f"{path}.missing", code=1)


def test_a_password_on_the_command_line_is_deprecated(cli: Cli, node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["users", "add", "a", "--password", "seen", "--http-url", node.http.base]) == 0
    assert "--password is deprecated" in capsys.readouterr().err
    assert "--password " not in cli("users", "add", "--help")


@pytest.fixture
def bob(node: Node) -> str:
    """The URL of the API for a user with the password `hush/1`, without the password."""
    node.http.put("/api/users/bob", {"password": "hush/1", "tags": "administrator"})
    node.http.put("/api/permissions/%2F/bob", {"configure": "", "write": "", "read": ""})
    return node.http.base.replace("://", "://bob@")


def test_the_password_to_log_in_with_comes_from_a_file_or_a_variable(
    cli: Cli, bob: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "password"
    path.write_text("hush/1\n")
    assert "no password for user 'bob'" in cli("list", "queues", url=bob, code=2)
    cli("list", "queues", "--password-file", str(path), url=bob)
    cli("explain", "", "q", "--password-file", str(path), url=bob)
    monkeypatch.setenv("HOLTMQ_PASSWORD", "hush/1")
    cli("list", "queues", url=bob)
    path.write_text("wrong")
    cli("list", "queues", "--password-file", str(path), url=bob, code=1)


def test_a_terminal_is_asked_for_the_password(bob: str) -> None:
    command = [sys.executable, "-m", "holtmq", "list", "queues", "--http-url", bob]
    main_end, other_end = pty.openpty()
    process = subprocess.Popen(command, stdin=other_end, stdout=other_end, stderr=other_end, start_new_session=True)
    os.close(other_end)
    told = b""
    while b"Password of user bob" not in told:
        assert select.select([main_end], [], [], PATIENCE_S)[0]
        told += os.read(main_end, 4096)
    os.write(main_end, b"hush/1\n")
    assert process.wait(PATIENCE_S) == 0
    told += os.read(main_end, 4096)
    os.close(main_end)
    assert b"No queues." in told
    assert b"hush" not in told


def test_a_password_in_a_url_is_never_printed(
    bob: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLTMQ_HTTP_URL", bob.replace("bob@", "bob:hush%2F1@"))
    assert main(["list", "queues"]) == 0
    assert capsys.readouterr().err == ""
    for wrong in ("http://bob:hush@127.0.0.1:1", "ftp://bob:hush@host", "http://bob:hush@[", "http://bob:hush@127.0.0.1:x"):
        monkeypatch.setenv("HOLTMQ_HTTP_URL", wrong)
        assert main(["list", "queues"]) != 0
        assert "hush" not in capsys.readouterr().err


def test_a_file_takes_precedence_over_a_broker_in_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "d.json"
    path.write_text('{"vhosts": [{"name": "/"}], "queues": [{"name": "q", "vhost": "/"}]}')
    monkeypatch.setenv("HOLTMQ_HTTP_URL", "http://127.0.0.1:1")
    assert main(["explain", "", "q", "--definitions", str(path)]) == 0


def test_names_and_messages_do_not_control_the_terminal(cli: Cli, node: Node) -> None:
    name = "\x1b[2Jq\x9b\u202e"
    cli("declare", "queue", name)
    cli("publish", "", name, "\x1b]0;title\x07body")
    for arguments in (
        ("list", "queues"),
        ("list", "queues", "--json"),
        ("get", name),
        ("get", name, "--json"),
        ("top", "--once"),
    ):
        assert cli(*arguments).replace("\n", "").isprintable(), arguments
    assert cli("delete", "queue", f"{name}!", code=1).replace("\n", "").isprintable()
    assert cli.json("list", "queues")[0]["name"] == name


class Redirect(BaseHTTPRequestHandler):
    """An HTTP API that sends clients elsewhere."""

    seen: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.seen.append(self.path)
        self.send_response(302)
        self.send_header("location", f"http://127.0.0.1:{self.server.server_port}/elsewhere")  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


def test_a_redirect_does_not_get_the_password(capsys: pytest.CaptureFixture[str]) -> None:
    with HTTPServer(("127.0.0.1", 0), Redirect) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        assert main(["status", "--http-url", f"http://127.0.0.1:{server.server_port}"]) == 1
        server.shutdown()
        thread.join()
    assert Redirect.seen == ["/api/overview"]
    assert "HTTP 302" in capsys.readouterr().err
