"""Routing keys and topic patterns as words, and how a pattern matches a key or fails to."""

from __future__ import annotations

from collections.abc import Sequence

from holtmq.routing.matcher import Verdict


def split(key: str) -> list[str]:
    """Return the words of a key or pattern: "" has none, "a." has two, the second of which is empty."""
    return key.split(".") if key else []


def normalise(words: list[str]) -> list[str]:
    """Return an equivalent pattern in which each run of wildcards has all its `*` first, then at most one `#`."""
    if "#" not in words:
        return words
    normal: list[str] = []
    has_hash = False
    for word in words:
        if word == "#":
            has_hash = True
            continue
        if word != "*" and has_hash:
            normal.append("#")
            has_hash = False
        normal.append(word)
    if has_hash:
        normal.append("#")
    return normal


def judge_pattern(pattern: str, routing_key: str) -> Verdict:
    """Return whether a pattern matches a key, and what each wildcard matched or where they differ."""
    expected, words = split(pattern), split(routing_key)
    reached = _reachable(expected, words)
    if len(words) in reached[len(expected)]:
        return Verdict(True, _captures(expected, words, reached))
    return _describe_difference(expected, words, reached)


def _reachable(expected: Sequence[str], words: Sequence[str]) -> list[set[int]]:
    """Return, for each prefix of the pattern, the lengths of the prefixes of the key that it matches."""
    reached: list[set[int]] = [{0}]
    for token in expected:
        if token == "#":
            reached.append(set(range(min(reached[-1]), len(words) + 1)) if reached[-1] else set())
        else:
            reached.append({at + 1 for at in reached[-1] if at < len(words) and token in ("*", words[at])})
    return reached


def _captures(expected: Sequence[str], words: Sequence[str], reached: list[set[int]]) -> str:
    """Return what the wildcards matched, found from the end; each `#` matches as little as possible."""
    taken: list[str] = []
    at = len(words)
    for index in range(len(expected) - 1, -1, -1):
        token = expected[index]
        start = max(before for before in reached[index] if before <= at) if token == "#" else at - 1
        if token in ("*", "#"):
            taken.append(f"{token} = {'.'.join(words[start:at]) or ('nothing' if token == '#' else '(empty word)')}")
        at = start
    return ", ".join(reversed(taken)) if taken else "all words are equal"


def _describe_difference(expected: Sequence[str], words: Sequence[str], reached: list[set[int]]) -> Verdict:
    """Return where pattern and key first differ, and how much of the pattern matched."""
    if reached[-1]:
        taken = max(reached[-1])
        return Verdict(False, f"the pattern ends, but the key continues with {'.'.join(words[taken:])!r}", taken / len(words))
    fitted = max(index for index, positions in enumerate(reached) if positions)
    reason = _missing(expected, words, fitted, min(reached[fitted]))
    return Verdict(False, reason, max(_share_fitted(expected, words, fitted, reached), _share_in_place(expected, words)))


def _share_fitted(expected: Sequence[str], words: Sequence[str], fitted: int, reached: list[set[int]]) -> float:
    """Return the share of the literal words of the pattern that match before the first one that does not.

    A word that is nearly equal, such as a misspelled one, counts in part.
    """
    own = sum(1 for word in expected[:fitted] if word not in ("*", "#"))
    slip = max((likeness(expected[fitted], words[at]) for at in reached[fitted] if at < len(words)), default=0.0)
    return (own + (slip / 2 if slip > 0.7 else 0.0)) / len(expected) * 0.9


def _share_in_place(expected: Sequence[str], words: Sequence[str]) -> float:
    """Return the share of words that are equal at their position, if pattern and key have the same length."""
    if len(expected) != len(words) or "#" in expected:
        return 0.0
    return sum(one == other for one, other in zip(expected, words, strict=True)) / len(expected) * 0.9


def _missing(expected: Sequence[str], words: Sequence[str], fitted: int, at: int) -> str:
    """Describe the first mismatch, after `fitted` words of the pattern and at least `at` words of the key."""
    rest = expected[fitted + 1 :]
    wanted = "any word" if expected[fitted] == "*" else repr(expected[fitted])
    follows_hash = fitted > 0 and expected[fitted - 1] == "#"
    if follows_hash and "#" not in rest and at + len(rest) < len(words):
        at = len(words) - len(rest) - 1  # after the last `#`, the rest of the pattern must match the end of the key
    elif follows_hash and at < len(words):
        return f"no word {wanted} after {'.'.join(expected[:fitted])!r}"
    if at >= len(words):
        return f"the key ends after {len(words)} word{'s' if len(words) != 1 else ''}, expected {wanted} next"
    return f"word {at + 1} is {words[at]!r}, expected {wanted}"


def likeness(one: str, other: str) -> float:
    """Return the share of characters that two strings have in common at their start and end."""
    start = _common_start(one, other)
    end = _common_start(one[start:][::-1], other[start:][::-1])
    return (start + end) / max(len(one), len(other), 1)


def _common_start(one: str, other: str) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
