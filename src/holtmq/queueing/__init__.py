"""What a queue does with a message: limits, terms, overflow, delivery limit, dead letters. Pure: no I/O and no clock."""
