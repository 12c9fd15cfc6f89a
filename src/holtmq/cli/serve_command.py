"""holtmq serve: an AMQP broker on a file or a PostgreSQL database."""

from __future__ import annotations

from typing import Any

import click

from holtmq.config import Config, load_config


@click.command()
@click.option(
    "--data",
    metavar="PATH|URL",
    help="HoltMQ file, or postgresql://user@host/database?schema=NAME; created if missing.  [default: holtmq.db]",
)
@click.option("--standby", is_flag=True, default=None, help="Wait while another broker owns the database, then take over.")
@click.option("--host", help="Address to listen on for AMQP.  [default: 127.0.0.1]")
@click.option("--amqp-port", type=int, help="AMQP port; 0 selects a free one.  [default: 5672]")
@click.option(
    "--http-port", type=int, help="Port of the HTTP API and web UI; 0 selects a free one, -1 disables them.  [default: 15672]"
)
@click.option("--http-host", help="Address to listen on for HTTP.  [default: 127.0.0.1]")
@click.option("--definitions", metavar="FILE", help="Definitions file to import at startup.")
@click.option("--config", "config_path", metavar="FILE", help="TOML configuration file; options override it.")
@click.option("--reports", metavar="FOLDER", help="Directory with pipeline reports to show in the web UI.")
@click.option(
    "--durability",
    type=click.Choice(["full", "normal", "off"]),
    help="What a confirmed message survives: a power failure (full) or a killed process (normal, off).  [default: full]",
)
@click.option("--log-format", type=click.Choice(["text", "json"]), help="Log format.  [default: text]")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Log level.  [default: info]")
def serve(config_path: str | None, **options: Any) -> None:
    """Run an AMQP 0-9-1 broker on a HoltMQ file or a PostgreSQL database.

    Prints one line when it is ready, and runs until it receives SIGTERM or Ctrl-C.
    """
    from holtmq.server.logs import logging_to_stderr
    from holtmq.server.run import serve as run

    config = (load_config(config_path) if config_path else Config()).updated(**options)
    with logging_to_stderr(config.log_format, config.log_level):
        run(
            config,
            lambda server: click.echo(f"HoltMQ is ready on {', '.join(server.addresses)} with {config.shown_data}"),
            lambda reason: click.echo(f"HoltMQ is a standby: {reason}"),
        )
