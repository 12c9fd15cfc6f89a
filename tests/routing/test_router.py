"""The router, beyond the table of cases: cache, binding settings, pickling, invalid input."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from holtmq import (
    AccessRefusedError,
    Binding,
    Entry,
    Exchange,
    InvalidValueError,
    NotFoundError,
    Queue,
    Router,
    Topology,
)
from holtmq.routing.matcher import Matcher
from holtmq.table import FieldValue


def topology(*bindings: Binding, type_: str = "topic") -> Topology:
    queues = dict.fromkeys(binding.destination for binding in bindings if binding.is_to_queue)
    names = dict.fromkeys([binding.source for binding in bindings] + [b.destination for b in bindings if not b.is_to_queue])
    return Topology(tuple(Exchange(name, type_) for name in names), tuple(map(Queue, queues)), bindings)


@pytest.fixture
def matches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys that a topic or headers exchange was really asked for, past the cache."""
    asked: list[str] = []

    def spy(matcher: type[Matcher]) -> None:
        original = matcher.match

        def match(self: Matcher, key: str, headers: Mapping[str, FieldValue]) -> object:
            asked.append(key)
            return original(self, key, headers)

        monkeypatch.setattr(matcher, "match", match)

    from holtmq.routing.headers import HeadersMatcher
    from holtmq.routing.topic import TopicMatcher

    spy(TopicMatcher)
    spy(HeadersMatcher)
    return asked


def test_a_route_is_found_once_and_remembered(matches: list[str]) -> None:
    router = Router(topology(Binding("x", "q", "a.*")))
    assert [router.route("x", "a.b") for _ in range(3)] == [("q",)] * 3
    assert matches == ["a.b"]


def test_headers_that_no_binding_names_do_not_make_another_signature(matches: list[str]) -> None:
    router = Router(topology(Binding("x", "q", "", {"a": 1, "b": None}), type_="headers"))
    for n in range(5):
        router.route("x", "k", {"trace-id": n, "a": 1})
    assert len(matches) == 1
    for n in range(5):
        assert router.route("x", "k", {"a": 1, "b": f"value {n}"}) == ("q",)
    assert len(matches) == 2, "values that no binding compares count as one"


def test_a_change_drops_only_the_routes_that_lead_to_it(matches: list[str]) -> None:
    router = Router(topology(Binding("x", "q", "#"), Binding("y", "q", "#"), Binding("up", "x", "#", {}, "exchange")))
    for name in ("x", "y", "up"):
        router.route(name, name)
    matches.clear()
    router.bind(Binding("x", "q", "other"))
    for name in ("x", "y", "up"):
        router.route(name, name)
    assert matches == ["x", "up", "up"]


def test_a_bind_that_changes_nothing_drops_nothing(matches: list[str]) -> None:
    router = Router(topology(Binding("x", "q", "#")))
    router.route("x", "k")
    router.bind(Binding("x", "q", "#"))
    router.unbind(Binding("x", "q", "never bound"))
    router.route("x", "k")
    assert matches == ["k"]


def test_the_cache_is_bounded_and_keeps_what_is_in_use(matches: list[str]) -> None:
    router = Router(topology(Binding("x", "q", "#")), cache_size=10)
    for n in range(1000):
        router.route("x", f"key.{n}")
        router.route("x", "in.use")
    assert matches.count("in.use") == 1
    forgotten = len(matches)
    for n in range(980):
        router.route("x", f"key.{n}")
    assert len(matches) - forgotten == 980, "more than 20 routes were kept"


def test_routing_keys_share_a_route_from_an_exchange_that_ignores_them(matches: list[str]) -> None:
    router = Router(topology(Binding("x", "q", "", {"kind": "a"}), type_="headers"))
    assert {router.route("x", f"key.{n}", {"kind": "a"}) for n in range(10)} == {("q",)}
    assert {router.route("x", f"key.{n}", {"kind": "b"}) for n in range(10)} == {()}
    assert len(matches) == 2
    with pytest.raises(InvalidValueError, match="a routing key must be at most 255 bytes"):
        router.route("x", "k" * 256, {"kind": "a"})


def test_keys_of_cc_are_not_taken_for_a_header_of_the_same_name() -> None:
    links = (Binding("x", "h", "#", {}, "exchange"), Binding("h", "q3", "", {"b": "c"}))
    exchanges, queues = (Exchange("x", "topic"), Exchange("h", "headers")), (Queue("q1"), Queue("q2"), Queue("q3"))
    router = Router(Topology(exchanges, queues, (Binding("x", "q1", "a"), Binding("x", "q2", "c"), *links)))
    assert router.route("x", "a", {"b": "c"}) == ("q1", "q3")
    assert router.route("x", "a", {"CC": ["b", "c"]}) == ("q1", "q2")


def test_routing_keys_count_if_another_exchange_within_reach_reads_them() -> None:
    links = (Binding("x", "y", "", destination_type="exchange"), Binding("y", "q", "a"))
    exchanges = (Exchange("x", "fanout"), Exchange("y", "direct"))
    router = Router(Topology(exchanges, (Queue("q"),), links))
    assert [router.route("x", key) for key in ("a", "b", "a")] == [("q",), (), ("q",)]


def test_routes_of_dead_letters_are_remembered_until_a_binding_changes(matches: list[str]) -> None:
    router = Router(topology(Binding("x", "q", "a.*")))
    assert [router.resolve_unpublished("x", ("a.b",)).queues for _ in range(3)] == [("q",)] * 3
    assert matches == ["a.b"]
    router.unbind(Binding("x", "q", "a.*"))
    assert router.resolve_unpublished("x", ("a.b",)).queues == ()


def test_an_internal_exchange_takes_dead_letters_and_refuses_publishers() -> None:
    router = Router(Topology((Exchange("x", "fanout", internal=True),), (Queue("q"),), (Binding("x", "q", ""),)))
    assert [router.resolve_unpublished("x", ("k",)).queues for _ in range(2)] == [("q",)] * 2
    with pytest.raises(AccessRefusedError):
        router.route("x", "k")


def test_a_router_without_a_cache_routes_the_same() -> None:
    router = Router(topology(Binding("x", "q", "a.#")), cache_size=0)
    assert [router.route("x", key) for key in ("a.b", "b", "a.b")] == [("q",), (), ("q",)]


def test_cc_keys_and_headers_never_share_a_signature() -> None:
    router = Router(topology(Binding("x", "q", "", {"b": "c"}), type_="headers"))
    assert router.route("x", "a", {"CC": ["b", "c"]}) == ()
    assert router.route("x", "a", {"b": "c"}) == ("q",)


def test_queues_come_sorted_by_name() -> None:
    router = Router(topology(*(Binding("x", name, "#") for name in ("b", "ä", "a", "Z", "10", "9"))))
    assert router.route("x", "k") == ("10", "9", "Z", "a", "b", "ä")


def test_of_several_bindings_the_highest_priority_and_the_shortest_ttl_win() -> None:
    router = Router(
        topology(
            Binding("x", "q", "a.#", {"x-priority": 3, "x-message-ttl": 100}),
            Binding("x", "q", "#.b", {"x-priority": 7, "x-message-ttl": 900}),
            Binding("x", "q", "none", {"x-priority": 200}),
            Binding("x", "plain", "#"),
            Binding("x", "only-ttl", "#", {"x-message-ttl": 0}),
        )
    )
    route = router.resolve("x", "a.b")
    assert route.entries == {"q": Entry(priority=7, ttl_ms=100), "only-ttl": Entry(ttl_ms=0)}


def test_settings_count_on_the_binding_that_enters_the_queue_only() -> None:
    link = Binding("x", "y", "#", {"x-priority": 9}, "exchange")
    router = Router(topology(link, Binding("y", "q", "#")))
    assert router.resolve("x", "k").entries == {}


def test_a_pickled_router_routes_the_same_in_another_process(tmp_path: Path) -> None:
    bindings = [Binding("x", f"q{n}", f"#.w{n}.*") for n in range(50)] + [Binding("x", "e", "a.#", {"x-priority": 3})]
    router = Router(topology(*bindings))
    keys = [f"a.w{n}.b" for n in range(60)]
    (tmp_path / "router").write_bytes(pickle.dumps(router))
    program = (
        f"import pickle; r = pickle.load(open({str(tmp_path / 'router')!r}, 'rb')); print([r.route('x', k) for k in {keys}])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == str([router.route("x", key) for key in keys])


def test_a_pickled_router_keeps_its_settings(matches: list[str]) -> None:
    router = Router(topology(Binding("x", "q", "#")), strict_unbind=False, cache_size=0)
    again = pickle.loads(pickle.dumps(router))
    assert again.unbind(Binding("x", "q", "never bound")) == router.unbind(Binding("x", "q", "never bound"))
    again.route("x", "k")
    again.route("x", "k")
    assert matches == ["k", "k"], "a cache was used"
    assert pickle.loads(pickle.dumps(Router(vhost="shop"))).vhost == "shop"


def test_an_exchange_of_a_foreign_type_fails_by_name_and_alone() -> None:
    exchanges = (Exchange("delayed", "x-delayed-message"), Exchange("x", "fanout"))
    router = Router(Topology(exchanges, (Queue("q"),), (Binding("x", "q"), Binding("delayed", "q", "k"))))
    assert router.route("x", "k") == ("q",)
    with pytest.raises(
        InvalidValueError, match="unknown exchange type 'x-delayed-message' of exchange 'delayed', expected one of direct"
    ):
        router.route("delayed", "k")
    assert router.delete_exchange("delayed")
    assert router.delete_queue("q")


def test_a_missing_alternate_exchange_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    router = Router(Topology((Exchange("x", arguments={"alternate-exchange": "gone"}),)))
    assert router.route("x", "k") == ()
    assert caplog.messages == ["alternate exchange 'gone' of exchange 'x' in vhost '/' does not exist"]


BAD_INPUT = [
    (("no", "k"), NotFoundError, 404, "no exchange 'no' in vhost '/'"),
    (("internal", "k"), AccessRefusedError, 403, "cannot publish to internal exchange 'internal'"),
    (("x", "k" * 256), InvalidValueError, 406, "a routing key must be at most 255 bytes in UTF-8, got 256 bytes"),
    (("x", 5), InvalidValueError, 406, "a routing key must be a string, got integer 5"),
    (("x", None), InvalidValueError, 406, "a routing key must be a string, got null"),
    (("x", ["a"]), InvalidValueError, 406, "a routing key must be a string, got array of 1"),
    (("x", b"a"), InvalidValueError, 406, "a routing key must be a string, got bytes b'a'"),
    ((7, "k"), InvalidValueError, 406, "the name of an exchange must be a string, got integer 7"),
    ((["x"], "k"), InvalidValueError, 406, "the name of an exchange must be a string, got array of 1"),
    (("x", "k", "headers"), InvalidValueError, 406, "headers must be a table (a mapping), got string 'headers'"),
    (("x", "k", [("a", 1)]), InvalidValueError, 406, "headers must be a table (a mapping), got array of 1"),
    (("x", "k", {"CC": "k"}), InvalidValueError, 406, "header 'CC' must be an array of routing keys, got string 'k'"),
    (("h", "k", {"a": object}), InvalidValueError, 406, "must have a type that AMQP supports"),
]


@pytest.mark.parametrize(("arguments", "error", "code", "message"), BAD_INPUT, ids=lambda value: None)
@pytest.mark.parametrize("method", ["route", "explain"])
def test_bad_input_gets_a_typed_error_with_its_code(
    method: str, arguments: tuple[str, str], error: type[NotFoundError], code: int, message: str
) -> None:
    exchanges = (Exchange("x", "topic"), Exchange("h", "headers"), Exchange("internal", internal=True))
    router = Router(Topology(exchanges, (Queue("q"),), (Binding("x", "q", "#"), Binding("h", "q", "", {"a": 1}))))
    router.route("x", "k")
    router.keyless_exchanges()  # nothing that was asked before makes a difference
    with pytest.raises(error) as refusal:
        getattr(router, method)(*arguments)
    assert refusal.value.reply_code == code
    assert message in str(refusal.value)


def test_an_x_match_that_means_nothing_is_refused_and_not_bound() -> None:
    router = Router(Topology((Exchange("h", "headers"),), (Queue("q"),)))
    with pytest.raises(InvalidValueError, match="'x-match' must be one of all, any, all-with-x, any-with-x, got string 'some'"):
        router.bind(Binding("h", "q", "", {"x-match": "some"}))
    assert router.to_topology().bindings == ()


def test_what_can_make_a_difference_is_known_for_the_whole_way() -> None:
    exchanges = (
        Exchange("all", "fanout"),
        Exchange("desks", "headers"),
        Exchange("by-key", "direct"),
        Exchange("alone", "fanout"),
    )
    bindings = (
        Binding("all", "desks", destination_type="exchange"),
        Binding("desks", "q", "", {"x-match": "any", "vip": True, "level": None}),
        Binding("alone", "by-key", destination_type="exchange"),
    )
    router = Router(Topology(exchanges, (Queue("q"),), bindings))
    assert router.header_names() == {"vip", "level"}
    assert router.keyless_exchanges() == {"all", "desks", "amq.fanout", "amq.headers", "amq.match"}


def test_a_full_cache_is_kept_until_it_has_left_out_several_times_as_many_routes(matches: list[str]) -> None:
    router = Router(topology(Binding("x", "q", "#")), cache_size=2)
    for key in ("a", "b", *"cdefghij"):  # eight are left out
        router.route("x", key)
    matches.clear()
    for key in ("a", "b", "k", "a", "b", "k"):  # with k, the cache starts anew, and a and b are moved to it
        router.route("x", key)
    assert matches == ["k"]


def two_exchanges() -> Topology:
    exchanges = (Exchange("x", "topic"), Exchange("y", "topic"))
    return Topology(exchanges, (Queue("q"),), (Binding("x", "q", "#"), Binding("y", "q", "#")))


def test_routes_of_an_exchange_that_is_gone_leave_room_for_others(matches: list[str]) -> None:
    router = Router(two_exchanges(), cache_size=10)
    for number in range(10):
        router.route("x", f"key.{number}")
    router.delete_exchange("x")
    for number in range(10):
        router.route("y", f"key.{number}")
    matches.clear()
    for number in range(10):
        router.route("y", f"key.{number}")
    assert matches == []


def test_an_exchange_with_ever_new_keys_leaves_others_their_share_of_the_cache(matches: list[str]) -> None:
    router = Router(two_exchanges(), cache_size=20)
    for number in range(30):
        router.route("x", f"key.{number}")
    for number in range(5):
        router.route("y", f"other.{number}")
    matches.clear()
    for number in range(5):
        router.route("y", f"other.{number}")
    assert matches == []
    for number in range(1000):
        router.route("y", f"new.{number}")
    forgotten = len(matches)
    for number in range(1000):
        router.route("y", f"new.{number}")
    assert len(matches) - forgotten >= 1000 - 60, "more than twice 30 routes were kept"


@pytest.mark.parametrize("pattern", ["a.b", "a.*", "*.b", "a.b.#", "a.#", "#.b", "*.#", "#.a.#"])
def test_a_key_takes_all_ways_through_patterns_that_begin_alike(pattern: str) -> None:
    router = Router(topology(Binding("x", "q", pattern), Binding("x", "q2", "a.c"), Binding("x", "q3", "a.*.c")))
    assert router.route("x", "a.b") == ("q",)
    assert "q2" in router.route("x", "a.c")
    assert "q3" in router.route("x", "a.b.c")
