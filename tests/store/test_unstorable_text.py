"""Names and values with NUL characters, or with bytes that are not UTF-8, are stored like any others, in every table."""

from __future__ import annotations

from contextlib import closing

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holtmq.accounts import Permission, TopicPermission, User
from holtmq.broker.queued_message import Origin, QueuedMessage
from holtmq.steps import complete
from holtmq.store.sql.batch_journal import BatchJournal
from holtmq.store.stream_port import StreamEntry
from holtmq.topology import Binding, Exchange, Parameter, Policy, Queue, Removal
from holtmq.wire.content import Properties, encode_properties, make_content
from tests.peers.peer import POSTGRES
from tests.places import database_at, journal_on

RAW = encode_properties({"delivery_mode": 2})
pytestmark = pytest.mark.peer(POSTGRES)
NAMES = ["a\0b", "\0", "\x01\x02\x03", "\0" * 255]
WRONG = "\0\udc80\udcff\ud800"
"""The value of an argument, which need not be UTF-8 as names must."""


@given(st.text(alphabet=st.characters(), max_size=30))
@example("".join(map(chr, range(0xD7F0, 0xE010))))
@example("".join(map(chr, range(10))) * 2)
def test_what_is_escaped_can_be_stored_and_comes_back(text: str) -> None:
    from holtmq.store.postgres.text import escaped, unescaped

    stored = escaped(text)
    assert "\0" not in stored
    assert unescaped(stored.encode().decode()) == text


def commit(journal: BatchJournal) -> None:
    journal.gather()
    assert journal.begin()
    complete(journal.write())
    journal.commit()


@pytest.mark.parametrize("durable_place", ["postgres"], indirect=True)
def test_every_table_takes_every_name(durable_place: str) -> None:
    with closing(journal_on(database_at(durable_place, owner="a test"))) as journal:
        journal.recover()
        for name in NAMES:
            fill(journal, name)
            commit(journal)
    with closing(journal_on(database_at(durable_place, owner="a test"))) as journal:
        recovered = journal.recover()
        topology = recovered.topology
        users, permissions = journal.accounts()
        assert sorted(topology.vhosts) == sorted([*NAMES, "/"])
        assert {exchange.name for exchange in topology.exchanges} >= set(NAMES)
        assert {queue.arguments["x"] for queue in topology.queues} == {name + WRONG for name in NAMES}
        assert {(b.source, b.destination, b.routing_key, b.arguments["x"]) for b in topology.bindings} == {
            (name, name, name, name + WRONG) for name in NAMES
        }
        assert {policy.name for policy in topology.policies} == set(NAMES)
        assert {parameter.value for parameter in journal.parameters()} == {name + WRONG for name in NAMES}
        assert {user.name for user in users} == set(NAMES)
        assert len(permissions) == 2 * len(NAMES)
        for name in NAMES:
            state = recovered.queues[name, name]
            assert [message.origin for message in journal.read(state.id, 0, 0, 10, 10**6).messages] == [(name, name)]
            journal.set_chunk_aside(state.id, name, 1, 1, "a test")
        for name in NAMES:
            binding = Binding(name, name, name, arguments={"x": name + WRONG}, vhost=name)
            journal.remove_parts(Removal(bindings=[binding]))
            journal.remove_user(name)
            journal.remove_policy(name, name)
        commit(journal)
        assert not journal.accounts()[0]


def fill(journal: BatchJournal, name: str) -> None:
    """Use a name, or a value, in every table."""
    journal.set_vhost(name, "{}")
    journal.add_exchange(Exchange(name, vhost=name))
    queue_id = journal.add_queue(Queue(name, arguments={"x": name + WRONG}, vhost=name))
    journal.add_binding(Binding(name, name, name, arguments={"x": name + WRONG}, vhost=name))
    journal.set_policy(Policy(name, name, {"x": name + WRONG}, "all", 0, name))
    journal.set_parameter(Parameter("c" + name[:50], name, name + WRONG, name))
    journal.set_user(User(name, "", "", ()))
    journal.set_permission(Permission(name, name, name, name, name))
    journal.set_permission(TopicPermission(name, name, name, name, name))
    message = QueuedMessage(queue_id << 30, Origin(name, name), Properties(RAW), make_content(RAW, b"m"), 1, 1)
    journal.add(message, queue_id, 0, None)
    change = journal.begin_stream(queue_id + 1000, 1000)
    change.entries.append(StreamEntry(name, name, RAW, b"m", 0, name, 1))
