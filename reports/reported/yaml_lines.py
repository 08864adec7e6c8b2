"""YAML with line numbers for error messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from bench.core.errors import BenchError

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's is seven times as fast


class YamlLines:
    """A parsed YAML text: its `data`, and the line of each part. The safe loader never constructs objects."""

    def __init__(self, text: str, name: str) -> None:
        """Parse `text`; raise :class:`BenchError` with `name` and line for bad YAML or a duplicate key."""
        try:
            loader = LOADER(text)
            try:
                self._root: Any = loader.get_single_node()
                _refuse_twice(self._root, name)
                self.data: Any = None if self._root is None else loader.construct_document(self._root)
            finally:
                loader.dispose()
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f"{name}, line {mark.line + 1}" if mark is not None else name
            raise BenchError(f"{where}: not valid YAML: {getattr(error, 'problem', None) or error}.") from error

    def line(self, path: Sequence[int | str]) -> int:
        """Return the line (from 1) of the deepest existing part of `path`; 1 if there is no such part."""
        node, line = self._root, 1
        for part in path:
            pairs = node.value if isinstance(node, yaml.MappingNode) else []
            if isinstance(node, yaml.SequenceNode):
                pairs = [(value, value) for value in node.value]
            keys = [str(index) if key is value else key.value for index, (key, value) in enumerate(pairs)]
            if str(part) not in keys:
                break
            key, node = pairs[keys.index(str(part))]
            line = key.start_mark.line + 1
        return line


def _refuse_twice(node: Any, name: str) -> None:
    if isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _refuse_twice(value, name)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if key.value in seen:
                raise BenchError(f"{name}, line {key.start_mark.line + 1}: {key.value!r} appears twice. Keep one.")
            seen.add(key.value)
            _refuse_twice(value, name)
