"""kombu, and a Celery worker with results, retries, ETA and priorities."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kombu
import kombu.pools
import pytest

from tests.deadline import eventually
from tests.server.process import BrokerProcess

TIMEOUT_S = 60.0


@pytest.fixture
def tasks(killable_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with application(url(killable_broker), monkeypatch) as celery_app:
        yield celery_app


@contextmanager
def application(broker_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield the module with the tasks, for this broker or these brokers."""
    monkeypatch.setenv("BROKER_URL", broker_url)
    sys.modules.pop("tests.clients.celery_app", None)  # the module reads the broker's address when it is imported
    celery_app = importlib.import_module("tests.clients.celery_app")
    yield celery_app
    results = celery_app.app.backend.result_consumer._connection  # noqa: SLF001  # Celery has no public way to close it
    if results is not None:
        results.collect()  # closes the socket without a handshake, because the broker may have been killed
    celery_app.app.close()
    kombu.pools.reset()
    sys.modules.pop("tests.clients.celery_app", None)


def url(broker: BrokerProcess) -> str:
    return f"amqp://guest:guest@127.0.0.1:{broker.port}//"


@contextmanager
def worker(broker_url: str) -> Iterator[None]:
    command = [sys.executable, "-m", "celery", "-A", "tests.clients.celery_app", "worker"]
    options = ["--pool", "threads", "--concurrency", "1", "--loglevel", "WARNING", "--without-gossip", "--without-mingle"]
    environment = {**os.environ, "BROKER_URL": broker_url}
    process = subprocess.Popen([*command, *options], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def test_tasks_return_results_retry_and_run_at_their_eta(killable_broker: BrokerProcess, tasks: Any) -> None:
    with worker(url(killable_broker)):
        assert tasks.add.delay(2, 3).get(timeout=TIMEOUT_S) == 5
        assert tasks.works_at_the_third_attempt.delay().get(timeout=TIMEOUT_S) == 2
        due = time.time() + 1
        assert tasks.time_of_day.apply_async(countdown=1).get(timeout=TIMEOUT_S) >= due


def test_tasks_of_higher_priority_run_first_and_survive_a_killed_broker(
    killable_broker: BrokerProcess, tasks: Any, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    for priority in (1, 9, 5):
        tasks.note.apply_async((str(notes), str(priority)), priority=priority)
    killable_broker.kill()
    killable_broker.start()
    with worker(url(killable_broker)):
        eventually(lambda: notes.exists() and len(notes.read_text().split()) == 3, "the three tasks to run")
    assert notes.read_text().split() == ["9", "5", "1"]


def test_kombu_publishes_consumes_requeues_and_dead_letters(killable_broker: BrokerProcess) -> None:
    exchange = kombu.Exchange("orders", "topic")
    dead = kombu.Queue("dead")
    queue = kombu.Queue(
        "work",
        exchange,
        "orders.#",
        queue_arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
    )
    seen: list[tuple[Any, bool]] = []

    def take(body: Any, message: kombu.Message) -> None:
        redelivered = bool(message.delivery_info["redelivered"])
        seen.append((body, redelivered))
        if body == {"n": 1} and not redelivered:
            message.requeue()
        elif body == {"n": 2}:
            message.reject()
        else:
            message.ack()

    with kombu.Connection(url(killable_broker), transport_options={"confirm_publish": True}) as connection:
        dead(connection.default_channel).declare()
        with connection.Producer() as producer:
            for number in range(4):
                producer.publish({"n": number}, exchange=exchange, routing_key="orders.eu", declare=[queue])
        with connection.Consumer([queue], callbacks=[take]):
            while len(seen) < 5:
                connection.drain_events(timeout=TIMEOUT_S)
        letter = dead(connection.default_channel).get(no_ack=True)
        assert letter.payload == {"n": 2}
    assert sorted(seen, key=str) == sorted([*(({"n": n}, False) for n in range(4)), ({"n": 1}, True)], key=str)
