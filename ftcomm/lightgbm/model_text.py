"""The text of a model that grows by a round at a time, as a state of plain bytes.

LightGBM's text has a head, the trees, and a tail with the parameters.  The trees of a round are
asked for alone, so a round costs no more than the one before.
"""

import re
from typing import Any

_TREE = re.compile(rb"^Tree=\d+$", re.MULTILINE)
_SIZES, _END = "tree_sizes=", "end of trees"


class ModelText:
    """Text of all trees so far.

    Attributes:
        rounds: whose trees it has.
    """

    def __init__(self) -> None:
        self.rounds = 0
        self._head, self._trees, self._tail = "", b"", ""

    def add(self, text: str) -> bytes:
        """Add a round by the text of a model of its trees alone; returns their own text."""
        head, _, rest = text.partition(_SIZES)
        _, _, rest = rest.partition("\n")
        trees, _, tail = rest.partition(_END)
        if not self.rounds:
            self._head, self._tail = head, tail
        added = trees.lstrip("\n").encode()
        self._trees += added
        self.rounds += 1
        return added

    def whole(self) -> str:
        """The text of the model."""
        starts = [found.start() for found in _TREE.finditer(self._trees)]
        ends = [*starts[1:], len(self._trees)]
        trees = [
            _TREE.sub(b"Tree=%d" % number, self._trees[start:end], count=1)
            for number, (start, end) in enumerate(zip(starts, ends, strict=True))
        ]
        sizes = " ".join(str(len(tree)) for tree in trees)
        body = b"".join(trees).decode()
        return f"{self._head}{_SIZES}{sizes}\n\n{body}{_END}{self._tail}"

    def state(self) -> dict[str, Any]:
        """Its content, for a checkpoint."""
        return {
            "rounds": self.rounds,
            "head": self._head,
            "trees": self._trees,
            "tail": self._tail,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take the content of a checkpoint."""
        self.rounds = state["rounds"]
        self._head, self._trees, self._tail = state["head"], state["trees"], state["tail"]
