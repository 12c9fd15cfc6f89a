"""How a job that was called from Python is announced to a broker, whose Pipeline page lists it. Runs on the driver.

Nothing is announced unless the caller, or a setting of the session, names the HTTP API. A job never guesses an address: what
answers there may belong to somebody else, and would get the password.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from urllib.parse import unquote, urlsplit

from pyspark.sql import SparkSession

from holtmq.client.address import Address, without_password
from holtmq.client.http_api import HttpApi
from holtmq.client.run_announcer import Announcement, RunAnnouncer
from holtmq.errors import HoltmqError, InvalidValueError
from holtmq.spark.amqp.amqp_options import BrokerOptions, QueueOptions

SETTING = "spark.holtmq.announce"
"""The setting of a session for jobs without the argument `announce`."""
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
    """Return a context in which a job is announced, best effort. Raise InvalidValueError if the URL is not one.

    `read` and `written` say what the job reads and writes, by default the broker. `lag` returns how many messages of the queue
    the job has not processed yet, or None if it does not know.
    """
    url = announce if announce is not None else spark.conf.get(SETTING, None)
    api = _api(url, broker) if url else None
    place = without_password(broker.url)
    alone = queue if isinstance(queue, str) else queue.queue
    what = f"queues {queue}" if alone is None else f"queue {alone}"
    source = read() if read is not None and api is not None else f"{place}, {what}"
    about = Announcement(api, source, written or place, Address.parse(broker.url).vhost, alone or "")
    return RunAnnouncer(job, about, rows, _explain, lag)


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
