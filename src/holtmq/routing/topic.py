"""The topic exchange type: patterns over the words of a key; `*` matches one word, `#` zero or more.

The patterns of an exchange form a trie of words. A key is matched word by word, along all branches at once. Two facts bound
the cost. First, each run of wildcards is normalised to its `*` followed by one `#` (`#.*.#` and `*.#` are equivalent), so a
`#` is followed by a literal word or by nothing. Second, a `#` that has been reached stays reached, so each is visited at
most once per word. The cost is at most (words of the key) x (nodes of the trie), whatever the number of `#`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from holtmq.routing.matcher import Matcher, Verdict
from holtmq.routing.pattern import judge_pattern, normalise, split
from holtmq.table import FieldValue
from holtmq.topology import Binding

_NO_WORDS: dict[str, _Node] = {}


class _Node:
    """A node of the trie: its children by word, the children for `*` and `#`, and the bindings whose pattern ends here.

    Most nodes have a single child or a single binding, which is stored without a container. That saves a third of the
    memory and half of the work of the garbage collector (benchmarks/routing.py).
    """

    __slots__ = ("bindings", "hash", "only_child", "only_word", "star", "words")

    def __init__(self) -> None:
        self.only_word: str | None = None
        self.only_child: _Node | None = None
        self.words = _NO_WORDS
        self.star: _Node | None = None
        self.hash: _Node | None = None
        self.bindings: Binding | set[Binding] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the node has neither children nor bindings."""
        return not (self.only_child or self.words or self.star or self.hash or self.bindings)

    def child(self, word: str) -> _Node | None:
        """Return the child for a word of a pattern, or None."""
        if word == "*":
            return self.star
        if word == "#":
            return self.hash
        return self.only_child if word == self.only_word else self.words.get(word)

    def grow(self, word: str) -> _Node:
        """Add a child for a word of a pattern."""
        child = _Node()
        if word == "*":
            self.star = child
        elif word == "#":
            self.hash = child
        elif self.only_child is None and not self.words:
            self.only_word, self.only_child = word, child
        else:
            if self.only_word is not None and self.only_child is not None:
                self.words = {self.only_word: self.only_child}
                self.only_word = self.only_child = None
            self.words[word] = child
        return child

    def cut(self, word: str) -> None:
        """Remove the child for a word of a pattern."""
        if word == "*":
            self.star = None
        elif word == "#":
            self.hash = None
        elif word == self.only_word:
            self.only_word = self.only_child = None
        else:
            del self.words[word]

    def add(self, binding: Binding) -> None:
        if self.bindings is None:
            self.bindings = binding
        elif isinstance(self.bindings, set):
            self.bindings.add(binding)
        else:
            self.bindings = {self.bindings, binding}

    def remove(self, binding: Binding) -> None:
        if isinstance(self.bindings, set):
            self.bindings.remove(binding)
        else:
            assert self.bindings == binding
            self.bindings = None

    def collect(self, found: list[Binding]) -> None:
        """Append the bindings whose pattern ends here."""
        if isinstance(self.bindings, set):
            found.extend(self.bindings)
        elif self.bindings is not None:
            found.append(self.bindings)


class TopicMatcher(Matcher):
    """The bindings of a topic exchange, as a trie of words."""

    type = "topic"

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, binding: Binding) -> None:
        node = self._root
        for word in normalise(split(binding.routing_key)):
            node = node.child(word) or node.grow(word)
        node.add(binding)

    def remove(self, binding: Binding) -> None:
        words = normalise(split(binding.routing_key))
        path = [self._root]
        for word in words:
            child = path[-1].child(word)
            assert child is not None
            path.append(child)
        path[-1].remove(binding)
        while words and path.pop().is_empty:
            path[-1].cut(words.pop())

    def match(self, routing_key: str, headers: Mapping[str, FieldValue]) -> Collection[Binding]:
        return self._walk(routing_key.split(".") if routing_key else [])

    def _walk(self, words: Sequence[str], *, is_pattern: bool = False) -> list[Binding]:  # noqa: C901
        """Return the bindings whose pattern matches these words or, with `is_pattern`, covers this pattern.

        Long and without helpers, because an uncached route spends its time here (benchmarks/routing.py).
        """
        found: list[Binding] = []
        node, at = self._root, 0
        for word in words:  # as long as there is one way only, which is all of it for most keys
            if node.hash is not None:
                break
            child = node.only_child if word == node.only_word else node.words.get(word)
            if node.star is not None:
                if child is not None or (is_pattern and word == "#"):
                    break
                child = node.star
            if child is None:
                return found
            node = child
            at += 1
        else:
            if node.hash is None:
                node.collect(found)
                return found
        reached_hashes: dict[_Node, None] = {}
        current = [node]
        _enter_hashes(current, reached_hashes, found)
        for word in words[at:]:
            following: list[_Node] = []
            accepts_star = not (is_pattern and word == "#")
            for node in current:
                child = node.only_child if word == node.only_word else node.words.get(word)
                if child is not None:
                    following.append(child)
                if node.star is not None and accepts_star:
                    following.append(node.star)
            for node in reached_hashes:
                child = node.only_child if word == node.only_word else node.words.get(word)
                if child is not None:
                    following.append(child)
            current = following
            for node in current:
                if node.hash is not None:
                    _enter_hashes(current, reached_hashes, found)
                    break
            if not current and not reached_hashes:
                return found
        for node in current:
            node.collect(found)
        return found

    def judge(self, binding: Binding, routing_key: str, headers: Mapping[str, FieldValue]) -> Verdict:
        return judge_pattern(binding.routing_key, routing_key)

    def covering(self, binding: Binding) -> Collection[Binding]:
        return self._walk(normalise(split(binding.routing_key)), is_pattern=True)


def _enter_hashes(nodes: Iterable[_Node], reached: dict[_Node, None], found: list[Binding]) -> None:
    """Add the `#` children of nodes, as `#` may match no word; a pattern that ends in `#` matches whatever follows."""
    for node in nodes:
        if node.hash is not None and node.hash not in reached:
            node.hash.collect(found)
            reached[node.hash] = None
