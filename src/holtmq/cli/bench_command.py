"""holtmq bench: a load generator for AMQP brokers."""

from __future__ import annotations

import json
from dataclasses import replace

import click

from holtmq.bench import Load, Result, run_load
from holtmq.bench.load import Sample
from holtmq.cli.broker_login import amqp_url_option, login_of
from holtmq.cli.options import json_option, password_file_option
from holtmq.client.address import Address, without_password


@click.command()
@amqp_url_option(default="amqp://127.0.0.1:5672/%2F")
@password_file_option
@click.option("-x", "--producers", default=1, show_default=True, type=click.IntRange(1, 1000), help="Number of producers.")
@click.option("-y", "--consumers", default=1, show_default=True, type=click.IntRange(0, 1000), help="Number of consumers.")
@click.option("-s", "--size", default=100, show_default=True, type=click.IntRange(0), help="Message size, in bytes.")
@click.option("-a", "--autoack", "auto_ack", is_flag=True, help="Consume with automatic acknowledgements.")
@click.option(
    "-q", "--qos", default=0, show_default=True, type=click.IntRange(0, 65535), help="Prefetch count; 0 is unlimited."
)
@click.option(
    "-A",
    "--multi-ack-every",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Number of messages per acknowledgement.",
)
@click.option(
    "-c",
    "--confirm",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    help="Maximum number of unconfirmed messages; 0 disables publisher confirms.",
)
@click.option("-f", "--flag", type=click.Choice(["persistent"]), help="Persistent messages in durable queues.")
@click.option(
    "-r",
    "--rate",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Total publish rate, in messages per second; 0 is unlimited.",
)
@click.option(
    "-z", "--time", "time_s", default=10.0, show_default=True, type=click.FloatRange(0.1, 3600), help="Duration, in seconds."
)
@click.option(
    "-C",
    "--pmessages",
    "messages",
    default=0,
    type=click.IntRange(0),
    help="Maximum number of messages to publish; 0 is unlimited.",
)
@click.option(
    "-t",
    "--type",
    "exchange_type",
    default="direct",
    show_default=True,
    type=click.Choice(["direct", "fanout", "topic"]),
    help="Exchange type.",
)
@click.option(
    "--queues",
    default=1,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Number of queues; each receives every message.",
)
@click.option(
    "--keys",
    default=1,
    show_default=True,
    type=click.IntRange(1, 100_000),
    help="Number of routing keys; each is bound to the queues.",
)
@json_option
def bench(amqp_url: str, password_file: str | None, flag: str | None, *, as_json: bool, **options: object) -> None:
    """Measure the throughput and latency of an AMQP broker. The short options are those of rabbitmq-perf-test."""
    load = Load(persistent=flag == "persistent", **options)  # type: ignore[arg-type]
    seen = Sample(0, 0, 0)

    def progress(sample: Sample) -> None:
        nonlocal seen
        span = sample.seconds - seen.seconds
        sent, received = (sample.sent - seen.sent) / span, (sample.received - seen.received) / span
        click.echo(f"{sample.seconds:6.1f} s   sent {sent:10,.0f}/s   received {received:10,.0f}/s", err=True)
        seen = sample

    address = Address.parse(amqp_url)
    user, password = login_of(amqp_url, password_file)
    result = run_load(replace(address, user=user, password=password), load, progress)
    shown = {"load": {"uri": without_password(amqp_url), **options}, **result.to_dict()}
    click.echo(json.dumps(shown) if as_json else describe(result))


def describe(result: Result) -> str:
    """Return the result as lines of text."""
    lines = [
        f"sent      {result.sent:12,} messages   {result.sent_per_s:12,.0f}/s",
        f"received  {result.received:12,} messages   {result.received_per_s:12,.0f}/s",
    ]
    if result.refused:
        lines.append(f"refused   {result.refused:12,} messages")
    if result.latency_us:
        lines.append("latency   " + "   ".join(f"{name} {value / 1000:.2f} ms" for name, value in result.latency_us.items()))
    return "\n".join(lines)
