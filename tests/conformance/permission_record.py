"""Write what both brokers answer into the table of permissions: python -m tests.conformance.permission_record

A new operation needs a `?` for each user only. Every outcome is measured anew; `git diff` shows what changed. Reasons for
differences are kept, and a difference without one makes the tests fail.
"""

from __future__ import annotations

from tests.conformance.permission_table import FILE, PermissionRow, load_permissions
from tests.conformance.permission_targets import Stage, rabbitmq_stage, stage
from tests.management.conftest import running_node
from tests.peers.rabbitmq import QUICK_SAMPLES, running_rabbitmq


def main() -> None:
    with (
        running_node() as node,
        stage(node.amqp_port, node.http) as ours,
        running_rabbitmq("rabbitmq_management", settings=QUICK_SAMPLES) as rabbitmq,
        rabbitmq_stage(rabbitmq) as theirs,
    ):
        FILE.write_text("\n".join(_rewritten(FILE.read_text().splitlines(), ours, theirs)) + "\n")


def _rewritten(lines: list[str], ours: Stage, theirs: Stage) -> list[str]:
    new = {}
    for section in load_permissions():
        widths = [max(len(user), 7) for user in section.users]
        first = max(len(row.operation) + 2 for row in section.rows)
        new[f"as {' '.join(section.users)}"] = _line("as", section.users, first, widths)
        for row in section.rows:
            cells = _cells(row, section.users, ours, theirs)
            marked = row.operation if row.rabbitmq is not None else f"+ {row.operation}"
            new[f"{section.title} {marked}"] = _line(marked, cells, first, widths)
    title, columns, done = "", 0, []
    for line in lines:
        if line.startswith("## "):
            title = line[3:]
        if line.startswith("as "):
            columns = len(line.split()) - 1
            done.append(new.get(" ".join(line.split()), line))
            continue
        done.append(new.get(f"{title} {line.rsplit(maxsplit=columns)[0].strip()}" if line.strip() else "", line))
    return done


def _cells(row: PermissionRow, users: tuple[str, ...], ours: Stage, theirs: Stage) -> list[str]:
    mine = ours.outcomes(row, users)
    other = theirs.outcomes(row, users) if row.rabbitmq is not None else mine
    return [one if one == two else f"{one}~{two}" for one, two in zip(mine, other, strict=True)]


def _line(first: str, cells: list[str] | tuple[str, ...], width: int, widths: list[int]) -> str:
    return f"{first:{width}} {' '.join(f'{cell:{size}}' for cell, size in zip(cells, widths, strict=True))}".rstrip()


if __name__ == "__main__":
    main()
