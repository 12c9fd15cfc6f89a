"""How a job is announced to the broker that it uses, whose Pipeline page lists it. Best effort. Runs on the driver.

The broker names its HTTP API (`client.broker_api`), unless the caller, or a setting of the session, names another one or none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, SparkSession

from holtmq.client.address import Address, without_password
from holtmq.client.broker_api import find_api
from holtmq.client.http_api import HttpApi
from holtmq.client.run_announcer import Announcement, RunAnnouncer
from holtmq.client.stepwise_run import StepwiseRun
from holtmq.errors import HoltmqError, InvalidValueError
from holtmq.spark.amqp.amqp_options import BrokerOptions, QueueOptions

SETTING = "spark.holtmq.announce"
"""The setting of a session for jobs without the argument `announce`."""
NOWHERE = ("", "false")
"""Values that turn announcements off."""
EXAMPLE = "http://127.0.0.1:15672"


def announced(
    spark: SparkSession,
    broker: BrokerOptions,
    announce: str | None,
    job: str,
    rows: Callable[[], int],
    *,
    read: Callable[[], str] | None = None,
    written: str = "",
    queue: str | QueueOptions = "",
    lag: Callable[[], int | None] = lambda: None,
) -> RunAnnouncer:
    """Return a context in which a job is announced. Raise InvalidValueError if `announce`, or the setting, is not a URL.

    `read` and `written` say what the job reads and writes, by default the broker. `lag` returns how many messages of the queue
    the job has not processed yet, or None if it does not know.
    """
    find = finder(broker, announce if announce is not None else spark.conf.get(SETTING, None))
    place = without_password(broker.url)
    alone = queue if isinstance(queue, str) else queue.queue
    what = f"queues {queue}" if alone is None else f"queue {alone}"
    source = read() if read is not None and find is not None else f"{place}, {what}"
    about = Announcement(find, source, written or place, Address.parse(broker.url).vhost, alone or "")
    return RunAnnouncer(job, about, rows, _explain, lag)


def announced_stream(
    broker: BrokerOptions, queues: QueueOptions, rows: Callable[[], int], lag: Callable[[], int | None]
) -> RunAnnouncer:
    """Return the announcement of a stream that reads queues, which its source starts and ends. Runs beside the driver."""
    what = f"queues {queues}" if queues.queue is None else f"queue {queues.queue}"
    address = Address.parse(broker.url)
    about = Announcement(
        finder(broker, broker.announce), f"{without_password(broker.url)}, {what}", "", address.vhost, queues.queue or ""
    )
    return RunAnnouncer("stream", about, rows, _explain, lag)


def end_stream(run: RunAnnouncer) -> None:
    """Announce how a stream ended that Spark stops. If it has failed, Spark stops it while it handles the error."""
    error = sys.exception()
    if isinstance(error, HoltmqError):
        run.end("failed", _explain(error))
    else:
        run.end("interrupted")


def announce_read(application: str, broker: BrokerOptions, queues: QueueOptions, rows: int) -> None:
    """Announce a batch read, and how many messages it may read, when Spark plans it.

    Nothing could tell when it ends. Spark reads a plan once for each action, and plans it only once. For `limit` and `show` it
    runs some of the tasks and stops them, so that the tasks do not know either, and it tells a source nothing afterwards.
    """
    what = f"queues {queues}" if queues.queue is None else f"queue {queues.queue}"
    run = _stepwise(application, "read", broker, f"{without_password(broker.url)}, {what}", "")
    run.announce("planned", rows)


def sink_run(application: str, job: str, broker: BrokerOptions, exchange: str | None) -> StepwiseRun:
    """Return the announcement of a sink: of batch writes, or of the micro-batches of a stream."""
    place = without_password(broker.url)
    source = "a stream" if job == "stream" else "a DataFrame"
    return _stepwise(
        application, job, broker, source, place if exchange is None else f"{place}, exchange {exchange or '(default)'}"
    )


def _stepwise(application: str, job: str, broker: BrokerOptions, source: str, target: str) -> StepwiseRun:
    about = Announcement(finder(broker, broker.announce), source, target, Address.parse(broker.url).vhost)
    return StepwiseRun(application, job, about)


def files_of(messages: DataFrame) -> str:
    """Return what a job reads, as far as it can be said in a line."""
    files = messages.inputFiles()
    return f"{files[0].rpartition('/')[0]} ({len(files):,} files)" if files else "a DataFrame"


def unannounced(broker: BrokerOptions) -> dict[str, str]:
    """Return the options of a broker for the source of a job that announces itself."""
    return replace(broker, announce=NOWHERE[0]).to_spark()


def finder(broker: BrokerOptions, url: str | None) -> Callable[[], HttpApi | None] | None:
    """Return a function that finds the HTTP API for a job: that of its broker, or at a URL. Return None if `url` is nowhere."""
    if url is None:
        return lambda: api_of(broker)
    if url.lower() in NOWHERE:
        return None
    api = _api(url, broker)
    return None if api is None else lambda: api


def require_announce(broker: BrokerOptions) -> None:
    """Raise InvalidValueError if the option `announce` is neither the URL of an HTTP API nor nowhere."""
    finder(broker, broker.announce)


def api_of(broker: BrokerOptions) -> HttpApi | None:
    """Return the HTTP API of a broker, or None if there is none, or if the driver cannot log in."""
    try:
        address = broker.address()
    except HoltmqError:  # a password that only the executors can read
        return None
    try:
        return find_api(address)
    except OSError:  # certificates that only the executors have
        return None


def _api(url: str, broker: BrokerOptions) -> HttpApi | None:
    """Return the HTTP API at a URL, or None if the driver does not have the password or the certificates.

    The user is that of the URL. Without one it is that of the job, whose password is sent to the host of the broker only.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidValueError(f"announce must be the URL of an HTTP API such as {EXAMPLE}, got {without_password(url)!r}")
    host = Address.parse(broker.url).host
    if parts.username is None and parts.hostname != host:
        raise InvalidValueError(
            f"announce names the host {parts.hostname!r}, and the job uses a broker on {host!r}: expected a URL with a user, "
            "such as http://user:password@host:15672"
        )
    with suppress(HoltmqError, OSError):  # as for a password that only the executors can read
        if parts.username is not None:
            user, password = unquote(parts.username), unquote(parts.password or "")
        else:
            user, password = broker.address().user, broker.address().password
        tls = broker.tls().context() if parts.scheme == "https" else None
        return HttpApi(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", user, password, tls)
    return None


def _explain(error: BaseException) -> str | None:
    """Return the cause of an error, or None if the user has interrupted the job."""
    return None if isinstance(error, KeyboardInterrupt) else str(error).partition("\n")[0]
