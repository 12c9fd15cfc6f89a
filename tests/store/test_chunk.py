"""The format of a chunk: what was packed is unpacked, and damage is noticed."""

from __future__ import annotations

import random

import pytest

from holtmq.store.chunk import Chunk, DamagedChunkError, Slice, UnpackedChunk, bits_of, mask_of, pack
from holtmq.wire.content import encode_properties, make_content

RAW = encode_properties({"delivery_mode": 2})
CONTENTS = [make_content(RAW, b"%d" % number * number) for number in range(20)]


@pytest.mark.parametrize("ids", [range(100, 120), [5 * number**3 + 1 for number in range(20)]])
@pytest.mark.parametrize(
    ("origins", "numbers"),
    [([("", "k")], [0] * 20), ([("", "k"), ("ex\u00e9", "a.b"), ("x", "")], [number % 3 for number in range(20)])],
)
def test_messages_are_unpacked_as_they_were_packed(
    ids: range | list[int], origins: list[tuple[str, str]], numbers: list[int]
) -> None:
    unpacked = UnpackedChunk(*pack(ids, CONTENTS, origins, numbers))
    assert list(unpacked.ids) == list(ids)
    assert unpacked.contents == CONTENTS
    assert unpacked.origins() == [origins[number] for number in numbers]
    assert unpacked.is_intact
    assert [unpacked.contents[unpacked.place_of(message_id)] for message_id in ids] == CONTENTS
    assert list(unpacked.sizes) == [len(b"%d" % number * number) for number in range(20)]


def test_a_chunk_is_repacked_with_some_of_its_messages() -> None:
    origins = [("", "k"), ("x", "y")]
    whole = UnpackedChunk(*pack(range(20), CONTENTS, origins, [number % 2 for number in range(20)]))
    part = UnpackedChunk(*whole.repack([3, 4, 9]))
    assert list(part.ids) == [3, 4, 9]
    assert part.contents == [CONTENTS[3], CONTENTS[4], CONTENTS[9]]
    assert part.origins() == [("x", "y"), ("", "k"), ("x", "y")]
    assert part.is_intact


def test_a_flipped_bit_damages_one_message_or_is_noticed_in_the_header() -> None:
    header, content = pack([2, 3, 5, 8], CONTENTS[10:14], [("", "a"), ("", "b")], [0, 1, 0, 1])
    chance = random.Random(1)
    for _ in range(300):
        place, bit = chance.randrange(len(content)), 1 << chance.randrange(8)
        flipped = bytearray(content)
        flipped[place] ^= bit
        unpacked = UnpackedChunk(header, bytes(flipped))
        damaged = [number for number in range(4) if unpacked.damage(number)]
        assert not unpacked.is_intact
        assert len(damaged) == 1
        assert unpacked.contents[damaged[0]] != CONTENTS[10 + damaged[0]]
    for place in range(len(header)):
        flipped = bytearray(header)
        flipped[place] ^= 1 << chance.randrange(8)
        with pytest.raises(DamagedChunkError, match="its header is damaged"):
            UnpackedChunk(bytes(flipped), content)
    for length in range(len(header)):
        with pytest.raises(DamagedChunkError, match="its header is damaged"):
            UnpackedChunk(header[:length], content)


@pytest.mark.parametrize("places", [[], [0], [3, 4, 5], [7, 1, 300], [5, 4, 3]])
def test_masks_have_a_bit_for_each_place(places: list[int]) -> None:
    assert bits_of(mask_of(places)) == sorted(places)


def test_a_slice_knows_what_is_left_of_it() -> None:
    chunk = Chunk(1, range(10, 15), [1, 2, 3, 4, 5], is_shared=False, is_transient=False)
    piece = chunk.slices[7] = Slice(0, 10, 14, 5, 15)
    chunk.remove(7, [10, 11])
    chunk.remove(7, [11, 13])  # one of them for the second time
    assert (piece.number, piece.size, bits_of(piece.gone)) == (2, 8, [0, 1, 3])
    chunk.keep_only(7, [14])
    assert (piece.number, piece.size, bits_of(piece.gone)) == (1, 5, [0, 1, 2, 3])
