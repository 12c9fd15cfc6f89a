"""Faults: what the broker and the embedded queue promise on a bad day, checked against a ledger."""
