"""YAML with the lines that its parts stand on, so that an error can name one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from bench.core.errors import BenchError


class Positions:
    """A parsed YAML text: its `data`, and the line of every part of it. Safe: no object is ever built."""

    def __init__(self, data: Any, root: Any) -> None:
        """Keep the parsed `data` and the `root` node it was made of."""
        self.data = data
        self._root = root

    @classmethod
    def of_yaml(cls, text: str, name: str) -> Positions:
        """Parse `text`, which the messages call `name`.

        Raises:
            BenchError: With the line, where it is no YAML, or a key stands twice in one mapping.

        """
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
            _refuse_twice(root, name)
            return cls(yaml.safe_load(text), root)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f"{name}, line {mark.line + 1}" if mark is not None else name
            raise BenchError(f"{where}: no YAML: {getattr(error, 'problem', None) or error}.") from error

    def line(self, path: Sequence[int | str]) -> int:
        """Return the line, from 1, of the deepest part of `path` that is there; 1 where none is."""
        node, line = self._root, 1
        for part in path:
            found = None
            if isinstance(node, yaml.MappingNode):
                found = next(((k, v) for k, v in node.value if k.value == str(part)), None)
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                found = (node.value[part], node.value[part])
            if found is None:
                break
            line, node = found[0].start_mark.line + 1, found[1]
        return line


def _refuse_twice(node: Any, name: str) -> None:
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if key.value in seen:
                raise BenchError(f"{name}, line {key.start_mark.line + 1}: {key.value!r} stands there twice. Keep one.")
            seen.add(key.value)
            _refuse_twice(value, name)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _refuse_twice(value, name)
