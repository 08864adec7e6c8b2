"""Data in a method's source or settings: it may come from the private set, yet it is published with them."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.interface.method import Method
from bench.interface.plugin_source import sources_of

MOST = 400
"""Limit on digits and on characters that are not language, in a source without other public data; ours have 212."""
MOST_SET = 250  # limit on digits and on characters of long texts in a method's settings
WORD = 20  # the longest word, in characters
TABLE = 20  # a collection of more texts than this counts in full
SAID = 300  # words of a file's texts, outside docstrings, that are free; our files have at most 282
READERS = frozenset({
    "__doc__", "__code__", "__annotations__", "co_consts", "co_names", "co_varnames", "getdoc", "getcomments",
    "getsource", "getsourcelines", "get_docstring", "get_annotations",
})  # fmt: skip
"""Names by which code reads its own docstrings and names, which then count in full."""
STATISTICS = {
    "mnist": (0.1307, 0.3081),
    "fmnist": (0.2860, 0.3530),
    "svhn": (0.4377, 0.4438, 0.4728, 0.1980, 0.2010, 0.1970),
    "cifar10": (0.4914, 0.4822, 0.4465, 0.2470, 0.2435, 0.2616, 0.2023, 0.1994, 0.2010),
    "cifar100": (0.5071, 0.4867, 0.4408, 0.2675, 0.2565, 0.2761),
}
"""Means and deviations of training images by which published code normalises."""
_LONG = re.compile(rf"\S{{{WORD + 1},}}|[^\x00-\x7f]+")
_CITED = re.compile(r"[(\[<]*(https?://|:\w+:`|`)")  # addresses and code names in docstrings


def constants_of(method: type[Method]) -> tuple[int, str]:
    """Return how much data the constants of a method's source hold, and where most of it is, for a reviewer.

    A number counts its significant digits, or its characters above :data:`WORD`. A text counts the characters of words
    longer than :data:`WORD` and non-ASCII characters, or all its characters in a collection of
    more than :data:`TABLE` texts. In docstrings, addresses and code names do not count. Names with such a word, or of
    more than four times its length, count in full. So do texts outside docstrings after the first :data:`SAID` words of
    a file, and docstrings and variable names in a file that uses one of :data:`READERS`.
    """
    held = Counter[str]()
    for file, data in (sources_of(method) or _module(method)).items():
        if file.suffix == ".py":
            for line, size in _sizes(ast.parse(data)):
                held[f"line {line} of {file.name}"] += size
    if not held:
        return 0, ""
    return held.total(), held.most_common(1)[0][0]


def statistics_in(method: type[Method]) -> str:
    """Return which of :data:`STATISTICS` a method's source holds, at least two of a data set, or ""."""
    numbers = {
        node.value
        for file, data in (sources_of(method) or _module(method)).items() if file.suffix == ".py"
        for node in ast.walk(ast.parse(data))
        if isinstance(node, ast.Constant) and isinstance(node.value, float)
    }  # fmt: skip
    for dataset, known in STATISTICS.items():
        found = sorted(number for number in numbers if any(abs(number - one) < 1e-4 for one in known))
        if len(found) > 1:
            return f"{', '.join(f'{number:g}' for number in found)}, statistics of {dataset}'s training images"
    return ""


def settings_size(value: object) -> int:
    """Return how much data settings hold: numbers by their digits, and all characters of a text above :data:`WORD`."""
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return sum(map(settings_size, value.values() if isinstance(value, Mapping) else value))
    if len(str(value)) > WORD:
        return len(str(value))
    return _digits(value) if isinstance(value, int | float) and not isinstance(value, bool) else 1


def _module(method: type[Method]) -> dict[Path, bytes]:
    file = getattr(sys.modules.get(method.__module__), "__file__", None)
    return {} if file is None else {Path(file): Path(file).read_bytes()}


def _sizes(tree: ast.Module) -> Iterator[tuple[int, int]]:
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    reads = any(_named(node) in READERS for node in ast.walk(tree))
    words = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            text = node.value if isinstance(node.value, str) else node.value.decode("latin1")
            words += 0 if id(node) in said else len(text.split())
            if reads if id(node) in said else words > SAID:
                yield node.lineno, len(text)
                continue
            long = _LONG.findall(text)
            yield node.lineno, sum(len(word) for word in long if not (id(node) in said and _CITED.match(word)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, complex | float | int):
            yield node.lineno, 0 if isinstance(node.value, bool) else _digits(node.value)
        elif isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict):
            entries = [*node.keys, *node.values] if isinstance(node, ast.Dict) else node.elts
            texts = [
                one.value for one in entries if isinstance(one, ast.Constant) and isinstance(one.value, str | bytes)
            ]
            yield node.lineno, sum(map(len, texts)) if len(texts) > TABLE else 0
        elif not isinstance(node, ast.Constant | ast.ImportFrom | ast.alias):
            names = [value for _, value in ast.iter_fields(node) if isinstance(value, str)]
            counted = (name for name in names if _is_long(name) or (reads and isinstance(node, ast.Name)))
            yield getattr(node, "lineno", 1), sum(map(len, counted))


def _is_long(name: str) -> bool:
    return len(name) > 4 * WORD or max(map(len, name.split("_"))) > WORD


def _digits(number: complex) -> int:
    """Return how much data a number holds: its significant digits, at least 1, or a long one's characters."""
    if isinstance(number, int) and number.bit_length() > 64:
        return number.bit_length() // 3
    text = repr(number)
    mantissa = text.partition("e")[0].replace(".", "").strip("(-0j)")
    return len(text) if len(text) > WORD else max(1, len(mantissa))


def _named(node: ast.AST) -> object:
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Constant):
        return node.value
    return node.name if isinstance(node, ast.alias) else getattr(node, "id", None)
