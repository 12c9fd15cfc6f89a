"""What survives: one SQLite file with the topology, the messages and where each stands in its queues."""

from holtmq.store.database import Database, Durability
from holtmq.store.declarations import Declarations
from holtmq.store.keys import RoutingKeys
from holtmq.store.messages import Claim, MessageStore, NewMessage, State, StoredMessage

__all__ = [
    "Claim",
    "Database",
    "Declarations",
    "Durability",
    "MessageStore",
    "NewMessage",
    "RoutingKeys",
    "State",
    "StoredMessage",
]
