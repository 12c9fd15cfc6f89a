"""The names that `import holtmq` offers, and the old ones that still work."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import pytest

import holtmq
from holtmq import embedded, errors


def test_every_error_is_exported() -> None:
    raised = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, errors.HoltmqError)}
    assert raised <= set(holtmq.__all__)


def test_every_exported_name_exists_and_is_documented() -> None:
    for name in holtmq.__all__:
        assert inspect.getdoc(getattr(holtmq, name)), name


def test_a_queue_handle_is_not_the_declaration_of_a_queue() -> None:
    with holtmq.open(":memory:") as mq:
        assert type(mq) is holtmq.EmbeddedBroker
        assert type(mq.queue("q")) is holtmq.QueueHandle
    assert holtmq.QueueHandle is not holtmq.Queue  # type: ignore[comparison-overlap]


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        (holtmq, "Embedded", "EmbeddedBroker"),
        (embedded, "Embedded", "EmbeddedBroker"),
        (embedded, "Queue", "QueueHandle"),
        (embedded, "Consumer", "CallbackConsumer"),
        (embedded, "Producer", "BackgroundProducer"),
        (holtmq.aio, "AsyncEmbedded", "AsyncEmbeddedBroker"),
        (holtmq.aio, "AsyncQueue", "AsyncQueueHandle"),
    ],
)
def test_an_old_name_works_with_a_warning(module: ModuleType, old: str, new: str) -> None:
    with pytest.warns(
        DeprecationWarning, match=rf"^{module.__name__}\.{old} was renamed to {new}; .* removed in 0\.3$"
    ) as seen:
        assert getattr(module, old) is getattr(module, new)
    assert seen[0].filename == __file__


def test_an_unknown_name_is_an_attribute_error() -> None:
    anything: Any = holtmq
    with pytest.raises(AttributeError, match="module 'holtmq' has no attribute 'Nonsense'"):
        _ = anything.Nonsense
