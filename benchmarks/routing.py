"""How fast the router is, beside the obvious way to do it, in one run: python -m benchmarks.routing [--quick]

Prints a table for benchmarks/README.md and draws benchmarks/routing.svg. Every time is the best of several rounds; what
counts is the ratio of two times taken in the same run.
"""

from __future__ import annotations

import argparse
import gc
import re
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

import matplotlib.pyplot as plt

from holtmq import Binding, Exchange, Queue, Router, Topology
from holtmq.table import FieldValue
from tests.conformance.naive import matches

Headers: TypeAlias = dict[str, FieldValue]
ROUNDS = 5
QUEUES = 100
PLOT = Path(__file__).with_name("routing.svg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes, to see that it runs")
    scale = 10 if parser.parse_args().quick else 1
    sizes = [size // scale for size in (1_000, 3_000, 10_000, 30_000, 100_000)]
    sizes = [100, *sizes] if scale == 1 else [10, *sizes]

    rows = [topic_against_linear(10_000 // scale), headers_against_linear(10_000 // scale)]
    rows += [cached_topic_against_dict(10_000 // scale), cached_headers_against_dict(10_000 // scale), many_hashes()]
    growth = {size: uncached_route_us(size) for size in sizes}
    smallest, largest = sizes[0], sizes[-1]
    compared = f"topic: an uncached route among {largest:,} / among {smallest:,}"
    rows.append(Row(compared, largest, growth[largest], growth[smallest], growth[largest] / growth[smallest]))
    declaring = {size: declare_us(size) for size in sizes}
    inserting = {size: insert_us(size) for size in sizes}
    for size in sizes[-3::2]:
        ratio = declaring[size] / inserting[size]
        rows.append(Row("declare a topic binding / insert into a dict", size, declaring[size], inserting[size], ratio))
    quiet = without_collector(lambda: declare_us(largest))
    rows.append(
        Row("declare with / without the garbage collector", largest, declaring[largest], quiet, declaring[largest] / quiet)
    )
    print("| what | bindings | HoltMQ, µs | beside it, µs | ratio |\n|---|---|---|---|---|")
    print("\n".join(map(str, rows)))
    print("\n| memory per binding | bytes |\n|---|---|")
    for what, size_bytes in memory_per_binding(10_000 // scale):
        print(f"| {what} | {size_bytes:,.0f} |")
    if scale == 1:
        draw(growth, declaring, inserting)


class Row(NamedTuple):
    """Two times of one run, and the ratio that the first column names."""

    what: str
    bindings: int
    ours_us: float
    beside_us: float
    ratio: float

    def __str__(self) -> str:
        times = " | ".join(
            f"{time_us:.3g}" if time_us < 1000 else f"{time_us:,.0f}" for time_us in (self.ours_us, self.beside_us)
        )
        return f"| {self.what} | {self.bindings:,} | {times} | {self.ratio:,.{2 if self.ratio < 10 else 0}f} |"


def topic_bindings(count: int) -> list[Binding]:
    """Patterns of five shapes; each key of `topic_keys` matches the same few of them, however many there are."""
    shapes = ("orders.r{n}.*.laptops", "orders.r{n}.#", "*.r{n}.eu.laptops", "#.s{n}.laptops", "logs.r{n}.error.*")
    return [Binding("x", f"q{n % QUEUES}", shapes[n % len(shapes)].format(n=n // len(shapes))) for n in range(count)]


def topic_keys(count: int) -> list[str]:
    """Keys spread over all the bindings; each matches three."""
    groups = count // 5
    return [f"orders.r{n * groups // 1000}.eu.laptops" for n in range(1000)]


def headers_bindings(count: int) -> list[Binding]:
    """Criteria on a handful of header names, in a dozen combinations, two in three for all and one for any."""
    names = ("region", "tier", "kind", "format", "lang")
    made = []
    for n in range(count):
        one, two = names[n % 5], names[(n // 5 % 4 + n % 5 + 1) % 5]
        mode = "any" if n % 3 == 2 else "all"
        made.append(Binding("x", f"q{n % QUEUES}", f"{n}", {"x-match": mode, one: f"v{n % 997}", two: f"v{n % 991}"}))
    return made


def headers_messages() -> list[Headers]:
    return [{"region": f"v{n % 997}", "tier": f"v{n % 991}", "kind": f"v{n % 500}", "trace": n} for n in range(1000)]


def router_of(bindings: list[Binding], type_: str, cache_size: int = 0) -> Router:
    queues = tuple(Queue(f"q{n}") for n in range(QUEUES))
    return Router(Topology((Exchange("x", type_),), queues, tuple(bindings)), cache_size=cache_size)


def topic_against_linear(count: int) -> Row:
    bindings, keys = topic_bindings(count), topic_keys(count)
    router = router_of(bindings, "topic")
    compiled = [(re.compile(as_regex(binding.routing_key)).fullmatch, binding.destination) for binding in bindings]

    def linear(key: str) -> tuple[str, ...]:
        dotted = f".{key}"
        return tuple(sorted({queue for fullmatch, queue in compiled if fullmatch(dotted)}))

    assert all(router.route("x", key) == linear(key) for key in keys[:20])
    ours_us = best_us(lambda: [router.route("x", key) for key in keys], len(keys))
    linear_us = best_us(lambda: [linear(key) for key in keys[:20]], 20)
    what = "topic: each binding's regular expression in turn / an uncached route"
    return Row(what, count, ours_us, linear_us, linear_us / ours_us)


def as_regex(pattern: str) -> str:
    """A topic pattern as a regular expression over a key that has a dot before every word."""
    wildcards = {"*": r"\.[^.]*", "#": r"(?:\.[^.]*)*"}
    return "".join(wildcards.get(word, re.escape(f".{word}")) for word in pattern.split("."))


def headers_against_linear(count: int) -> Row:
    bindings, messages = headers_bindings(count), headers_messages()
    router = router_of(bindings, "headers")

    def linear(headers: Headers) -> tuple[str, ...]:
        return tuple(sorted({b.destination for b in bindings if matches("headers", b, "", headers)}))

    assert all(router.route("x", "", headers) == linear(headers) for headers in messages[:10])
    ours_us = best_us(lambda: [router.route("x", "", headers) for headers in messages], len(messages))
    linear_us = best_us(lambda: [linear(headers) for headers in messages[:10]], 10)
    return Row("headers: each binding in turn / an uncached route", count, ours_us, linear_us, linear_us / ours_us)


def cached_topic_against_dict(count: int) -> Row:
    router, keys = router_of(topic_bindings(count), "topic", cache_size=50_000), topic_keys(count)
    routes = {key: router.route("x", key) for key in keys}
    ours_us = best_us(lambda: [router.route("x", key) for key in keys], len(keys))
    dict_us = best_us(lambda: [routes[key] for key in keys], len(keys))
    return Row("topic: a cached route / a dict look-up", count, ours_us, dict_us, ours_us / dict_us)


def cached_headers_against_dict(count: int) -> Row:
    router, messages = router_of(headers_bindings(count), "headers", cache_size=50_000), headers_messages()
    routes = {n: router.route("x", "", headers) for n, headers in enumerate(messages)}
    ours_us = best_us(lambda: [router.route("x", "", headers) for headers in messages], len(messages))
    dict_us = best_us(lambda: [routes[n] for n in range(len(messages))], len(messages))
    return Row("headers, 3 of 5 names: a cached route / a dict look-up", count, ours_us, dict_us, ours_us / dict_us)


def many_hashes() -> Row:
    key = ".".join(["a"] * 100)
    many, one = (router_of([Binding("x", "q0", pattern)], "topic") for pattern in (".".join(["#.a"] * 50), "#"))
    many_us, one_us = best_us(lambda: many.route("x", key), 1), best_us(lambda: one.route("x", key), 1)
    return Row("topic: 50 times `#.a` / one `#`, against 100 words", 1, many_us, one_us, many_us / one_us)


def uncached_route_us(count: int) -> float:
    router, keys = router_of(topic_bindings(count), "topic"), topic_keys(count)
    return best_us(lambda: [router.route("x", key) for key in keys], len(keys))


def declare_us(count: int) -> float:
    """The whole of it: make the binding, check it, keep it, index it."""
    shapes = [(binding.destination, binding.routing_key) for binding in topic_bindings(count)]

    def declare() -> None:
        for destination, key in shapes:
            router.bind(Binding("x", destination, key))

    best = float("inf")
    for _ in range(ROUNDS):
        router = router_of([], "topic")
        best = min(best, elapsed_us(declare) / count)
    return best


def insert_us(count: int) -> float:
    keys = [("x", binding.destination, binding.routing_key) for binding in topic_bindings(count)]

    def insert() -> None:
        table: dict[tuple[str, str, str], int] = {}
        for key in keys:
            table[key] = 1

    return best_us(insert, count)


def memory_per_binding(count: int) -> Iterator[tuple[str, float]]:
    for type_, make in (("topic", topic_bindings), ("direct", topic_bindings), ("headers, two criteria", headers_bindings)):
        router = router_of([], type_.partition(",")[0])
        gc.collect()
        tracemalloc.start()
        for binding in make(count):
            router.bind(binding)
        gc.collect()
        yield type_, tracemalloc.get_traced_memory()[0] / count
        tracemalloc.stop()


def without_collector(measure: Callable[[], float]) -> float:
    gc.disable()
    try:
        return measure()
    finally:
        gc.enable()


def best_us(work: Callable[[], object], items: int) -> float:
    return min(elapsed_us(work) for _ in range(ROUNDS)) / items


def elapsed_us(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e6


def draw(growth: dict[int, float], declaring: dict[int, float], inserting: dict[int, float]) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    left.plot(list(growth), list(growth.values()), "o-")
    left.set(xscale="log", ylim=(0, None), xlabel="topic bindings", ylabel="µs", title="An uncached route")
    right.plot(list(declaring), list(declaring.values()), "o-", label="declare a binding")
    right.plot(list(inserting), list(inserting.values()), "o-", label="insert into a dict")
    right.set(xscale="log", ylim=(0, None), xlabel="topic bindings", ylabel="µs each", title="Declaring n bindings")
    right.legend()
    figure.savefig(PLOT)


if __name__ == "__main__":
    main()
