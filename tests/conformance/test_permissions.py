"""The table of permissions on HoltMQ, in memory and on PostgreSQL, and on a live RabbitMQ, and that it is complete."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import starmap

import pytest

from holtmq.management.operations import api
from holtmq.server.dispatch import CALLS
from holtmq.wire import methods as wire
from holtmq.wire.methods import Method
from tests.conformance.permission_table import PermissionRow, PermissionSection, load_permissions
from tests.conformance.permission_targets import Stage, rabbitmq_stage, stage
from tests.management.conftest import running_node
from tests.peers.peer import POSTGRES
from tests.peers.rabbitmq import RabbitMQ

SECTIONS = load_permissions()
ROWS = [row for section in SECTIONS for row in section.rows]


@pytest.fixture(scope="module", params=["memory", pytest.param("postgres", marks=pytest.mark.peer(POSTGRES))])
def holtmq(request: pytest.FixtureRequest) -> Iterator[Stage]:
    data = request.getfixturevalue("postgres").url() if request.param == "postgres" else ":memory:"
    with running_node(data=data) as node, stage(node.amqp_port, node.http) as one:
        yield one


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)
def test_holtmq_permits_what_the_table_says(holtmq: Stage, section: PermissionSection) -> None:
    seen = [shown(row, section, holtmq.outcomes(row, section.users)) for row in section.rows]
    assert seen == [shown(row, section, row.holtmq) for row in section.rows]


@pytest.mark.rabbitmq
def test_rabbitmq_permits_what_we_say_of_it(rabbitmq: RabbitMQ) -> None:
    asked = [(row, section) for section in SECTIONS for row in section.rows if row.rabbitmq is not None]
    with rabbitmq_stage(rabbitmq) as theirs:
        seen = [shown(row, section, theirs.outcomes(row, section.users)) for row, section in asked]
    assert seen == [shown(row, section, row.rabbitmq or ()) for row, section in asked]


def shown(row: PermissionRow, section: PermissionSection, outcomes: tuple[str, ...]) -> str:
    return f"{row.operation}: {', '.join(starmap('{}={}'.format, zip(section.users, outcomes, strict=True)))}"


def test_every_method_of_a_client_is_in_the_table() -> None:
    methods: set[type[Method]] = {wire.ConnectionOpen, wire.ChannelOpen, wire.BasicPublish, wire.BasicGet, *CALLS}
    assert {method.label() for method in methods} - {row.words[0] for row in ROWS} == set()


def test_every_operation_of_the_http_api_is_in_the_table() -> None:
    asked = set()
    for row in ROWS:
        if row.is_http:
            method, path = row.words
            found = api.find(path)
            assert found is not None, path
            asked.add(found[0][method].path + method)
    assert {operation.path + operation.method for operation in api.every} - asked == set()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.operation)
def test_a_difference_has_a_reason(row: PermissionRow) -> None:
    assert bool(row.reason) == (row.rabbitmq not in (None, row.holtmq))
