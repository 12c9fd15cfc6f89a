-- Version 6: damage is noticed.

-- CRC-32 of what a consumer receives (store/checksum.py). Messages stored before have none and are not verified.
ALTER TABLE messages ADD COLUMN checksum INTEGER;
