"""The Celery application of the tests."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery
from kombu import Queue

app = Celery("tests", broker=os.environ["BROKER_URL"], backend="rpc://")
app.conf.update(
    task_queues=[Queue("celery", queue_arguments={"x-max-priority": 10})],
    task_default_queue="celery",
    broker_transport_options={"confirm_publish": True},
    worker_prefetch_multiplier=1,
    task_acks_late=True,
    broker_connection_retry_on_startup=True,
    result_expires=60,
)


@app.task
def add(a: int, b: int) -> int:
    return a + b


@app.task(bind=True, max_retries=3)
def works_at_the_third_attempt(self: Any) -> int:
    if self.request.retries < 2:
        raise self.retry(countdown=0.2)
    return int(self.request.retries)


@app.task
def time_of_day() -> float:
    return time.time()


@app.task
def note(path: str, text: str) -> None:
    with open(path, "a") as file:  # noqa: PTH123  # as a user would
        file.write(text + "\n")
