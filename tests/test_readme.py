"""The README and the docs are true: their Python runs, and their commands print what the page shows."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from holtmq.config import Config

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of a page in a language."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [block for its_language, block in fenced if its_language == language]


PYTHON_PAGES = [page for page in PAGES if blocks(page, "python")]
SPARK_PAGES = [page for page in PYTHON_PAGES if any("holtmq.spark" in block for block in blocks(page, "python"))]
COMMANDS = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(each for each in blocks(page, "") if each.startswith("$ "))
]
assert SPARK_PAGES
assert COMMANDS


@pytest.mark.parametrize("page", [page for page in PYTHON_PAGES if page not in SPARK_PAGES], ids=lambda page: page.name)
def test_python_gives_the_results_in_its_comments(
    page: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    run_page(page, request)


@pytest.mark.usefixtures("spark")  # session() returns this one, which is stopped at the end
@pytest.mark.parametrize("page", SPARK_PAGES, ids=lambda page: page.name)
def test_python_with_spark_gives_the_results_in_its_comments(
    page: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    run_page(page, request)


def run_page(page: Path, request: pytest.FixtureRequest) -> None:
    """Run the Python of a page. A comment on the line after an expression is its value.

    The blocks of a page share their names. They are one test, because pytest may run two tests in two processes.
    """
    names: dict[str, Any] = {}
    for block in blocks(page, "python"):
        run_block(block, names, request)


def run_block(block: str, names: dict[str, Any], request: pytest.FixtureRequest) -> None:
    lines = block.splitlines()
    for statement in ast.parse(block).body:
        assert statement.end_lineno is not None
        following = lines[statement.end_lineno : statement.end_lineno + 1]
        if isinstance(statement, ast.Expr) and following and following[0].startswith("# "):
            value = eval(compile(ast.Expression(statement.value), "README", "eval"), names)
            assert repr(value) == following[0][2:]
        else:
            exec(compile(ast.Module([statement], []), "README", "exec"), names)
        if isinstance(statement, ast.FunctionDef) and statement.name.startswith("test_"):
            arguments = {argument.arg: request.getfixturevalue(argument.arg) for argument in statement.args.args}
            names[statement.name](**arguments)


@pytest.mark.parametrize("block", COMMANDS)
def test_commands_print_what_the_page_shows(block: str) -> None:
    command, _, expected = block.removeprefix("$ .venv/bin/").partition("\n")
    done = subprocess.run(
        [sys.executable, "-m", *command.split()], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True
    )
    assert done.stdout == expected


def test_the_example_topology_is_the_one_of_the_demo() -> None:
    from holtmq import Topology
    from holtmq.cli.demo_command import shop

    example = Topology.from_definitions(ROOT / "examples" / "shop.json")
    assert (example.exchanges, example.queues, example.bindings) == (shop().exchanges, shop().queues, shop().bindings)


def test_every_setting_of_the_broker_is_documented_with_its_default() -> None:
    page = (ROOT / "docs" / "broker.md").read_text()
    for setting in fields(Config):
        default = "—" if setting.default is None else f"`{json.dumps(setting.default)}`"
        assert f"| `{setting.name}` | {default} | {setting.metadata['help']} |" in page
