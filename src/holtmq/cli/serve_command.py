"""holtmq serve: an AMQP broker on a file."""

from __future__ import annotations

from typing import Any

import click

from holtmq.config import Config, load_config


@click.command()
@click.option("--data", metavar="PATH", help="The file that holds topology and messages; made if it is not there.")
@click.option("--host", help="The address to listen on.  [default: 127.0.0.1]")
@click.option("--amqp-port", type=int, help="The port for AMQP; 0 for any that is free.  [default: 5672]")
@click.option(
    "--http-port", type=int, help="The port for the HTTP API and the pages; 0 for any, -1 for none.  [default: 15672]"
)
@click.option("--http-host", help="The address to listen on for HTTP.  [default: 127.0.0.1]")
@click.option("--definitions", metavar="FILE", help="RabbitMQ's definitions JSON, taken in at start.")
@click.option("--config", "config_path", metavar="FILE", help="A TOML file with settings; options here come before it.")
@click.option("--reports", metavar="FOLDER", help="A folder with reports of the pipeline, to be shown in the pages.")
@click.option("--durability", type=click.Choice(["full", "normal", "off"]), help="What a confirm survives.  [default: full]")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="How the log is written.  [default: text]")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="[default: info]")
def serve(config_path: str | None, **options: Any) -> None:
    """Run an AMQP 0-9-1 broker on a HoltMQ file until it is stopped."""
    from holtmq.server.logs import set_up_logs
    from holtmq.server.run import serve as run

    config = (load_config(config_path) if config_path else Config()).updated(**options)
    set_up_logs(config.log_format, config.log_level)
    run(config, lambda server: click.echo(f"HoltMQ is ready on {', '.join(server.addresses)} with {config.data}"))
