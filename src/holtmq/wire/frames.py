"""Frames (AMQP 0-9-1 §2.3): type, channel, length, payload and frame-end octet."""

from __future__ import annotations

import struct

from holtmq.wire.methods import Method, encode_method

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = 0xCE
FRAME_START = struct.Struct(">BHI")
CONTENT_START = struct.Struct(">BHIHHQ")
"""The start of a header frame: type, channel, length, then class, weight and length of the body."""
OVERHEAD = FRAME_START.size + 1
SMALLEST_FRAME_MAX = 4096
BASIC = 60
HEARTBEAT_FRAME = FRAME_START.pack(HEARTBEAT, 0, 0) + bytes((FRAME_END,))


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Encode a frame."""
    return FRAME_START.pack(kind, channel, len(payload)) + payload + b"\xce"


def method_frame(channel: int, method: Method, errors: str = "strict") -> bytes:
    """Encode a method as a frame. `errors` tells what to do with texts that UTF-8 cannot encode."""
    return frame(METHOD, channel, encode_method(method, errors))
