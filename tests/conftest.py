"""Fixtures that all tests share, and the rule that a missing peer skips a test."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from holtmq.testing import TestBroker, running_broker
from tests.peers.peer import PEERS, POSTGRES, RABBITMQ, REQUIRE, MissingPeerError, Peer, looked_up
from tests.peers.rabbitmq import CONSISTENT_HASH_PLUGIN, QUICK_SAMPLES, RabbitMQ, running_rabbitmq
from tests.server.process import BrokerProcess, broker_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.peers.postgres import Postgres

MISSING_PEER = "missing peer"

# Spark's short jobs end before the optimizing compiler pays off, and it takes the processor from the tests.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK_JAVA)

# No time limit per example: it fails on a busy machine, and when the first example imports a large library.
settings.register_profile("holtmq", deadline=None)
settings.load_profile("holtmq")


@pytest.fixture
def broker_settings() -> dict[str, Any]:
    """The settings of the fixture `broker`. A module with a broker of another kind overrides this fixture."""
    return {}


@pytest.fixture
def broker(broker_settings: dict[str, Any]) -> Iterator[TestBroker]:
    """A broker in this process, new for each test."""
    with running_broker(**broker_settings) as broker:
        yield broker


@pytest.fixture
def killable_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker in a process of its own, on a file, which a test can kill and start again."""
    with broker_process(tmp_path / "broker.db") as broker:
        yield broker


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMQ]:
    """A node that all tests share. Each test leaves it as empty as it found it, if need be with `clear`."""
    with running_rabbitmq("rabbitmq_management", CONSISTENT_HASH_PLUGIN, settings=QUICK_SAMPLES) as node:
        yield node


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A server that all tests share. Each test has a schema of its own."""
    from tests.peers.postgres import running_postgres

    with running_postgres() as server:
        yield server


@pytest.fixture(params=["file", pytest.param("postgres", marks=pytest.mark.peer(POSTGRES))])
def durable_place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store is that survives its process: a path, and the URL of a schema."""
    if request.param == "file":
        return str(tmp_path / "store.db")
    server: Postgres = request.getfixturevalue("postgres")
    return server.url()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark session for all tests, because it takes seconds to start."""
    from holtmq.spark import register, session

    warehouse = tmp_path_factory.mktemp("warehouse")
    settings = {"spark.sql.warehouse.dir": warehouse, "spark.driver.memory": "2g", "spark.sql.shuffle.partitions": 2}
    spark = session("local[2]", config=settings)
    register(spark)
    yield spark
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # Spark leaves the sockets to its Java process open
        spark.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need a peer, so that `-m peer` selects them all, and skip those whose peer is missing."""
    if names := looked_up():
        raise pytest.UsageError(f"a module looks up {', '.join(names)} when it is imported: only a test may do so")
    missing = {peer.name for peer in PEERS if not peer.is_installed}
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        for peer in PEERS:
            if any(name in fixtures for name in peer.fixtures) or (peer is RABBITMQ and item.get_closest_marker("rabbitmq")):
                item.add_marker(pytest.mark.peer(peer))
        for peer in _peers_of(item):
            if peer.name in missing and not os.environ.get(REQUIRE):
                item.user_properties.append((MISSING_PEER, peer.name))
                item.add_marker(pytest.mark.skip(reason=f"{peer.name} is not installed"))
    _put_shared_processes_first(items)


def _put_shared_processes_first(items: list[pytest.Item]) -> None:
    """Let the modules that use Spark come first, then those that use RabbitMQ.

    pytest-xdist gives each of its processes one part of the list, in order, and one that is done takes tests from the end of
    another's part. So the first part's process alone starts Spark and RabbitMQ, and short tests are left for the end.
    """
    ranks: dict[Path, int] = {}
    for item in items:
        rank = 0 if "spark" in getattr(item, "fixturenames", ()) else 1 if RABBITMQ in _peers_of(item) else 2
        ranks[item.path] = min(rank, ranks.get(item.path, rank))
    items.sort(key=lambda item: ranks[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    looked_up()
    try:
        yield
    except MissingPeerError as error:
        _skip(item, error)
    _check_marks(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    yield
    _check_marks(item)


def _peers_of(item: pytest.Item) -> list[Peer]:
    return [peer for marker in item.iter_markers("peer") for peer in marker.args]


def _skip(item: pytest.Item, error: MissingPeerError) -> None:
    """Skip a test whose peer turns out to be missing when a fixture starts it."""
    if os.environ.get(REQUIRE):
        pytest.fail(str(error), pytrace=False)
    item.user_properties.append((MISSING_PEER, error.name))
    pytest.skip(str(error))


def _check_marks(item: pytest.Item) -> None:
    """Fail a test that uses a peer without its mark, because the run with hidden peers does not include it."""
    unmarked = set(looked_up()) - {peer.name for peer in _peers_of(item)}
    if unmarked:
        pytest.fail(f"the test uses {', '.join(sorted(unmarked))} and has no pytest.mark.peer for it", pytrace=False)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Close the run with what was skipped and why, in a line for each reason instead of one for each test."""
    skipped = terminalreporter.getreports("skipped")
    peers = {report.nodeid: name for report in skipped for key, name in report.user_properties if key == MISSING_PEER}
    reasons = Counter(str(report.longrepr[2]) for report in skipped if report.nodeid not in peers)
    for reason, count in reasons.items():
        terminalreporter.write_line(f"{_tests(count)} skipped. {reason.removeprefix('Skipped: ')}")
    if peers:
        names = ", ".join(sorted(set(peers.values()), key=str.lower))
        terminalreporter.write_line(
            f"{_tests(len(peers))} skipped because these programs are not installed: {names}. Run `make peers` to install them."
        )


def _tests(count: int) -> str:
    return "1 test was" if count == 1 else f"{count} tests were"
