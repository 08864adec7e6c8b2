"""Safe reading of untrusted YAML files: plain values only, of limited size and depth."""

from __future__ import annotations

import functools
import math
import re
from pathlib import Path
from typing import ClassVar, TypeAlias

from bench.core.errors import BenchError
from bench.core.lazy_libraries import yaml
from bench.core.plain_files import read_plain

Value: TypeAlias = "str | int | float | bool | list[Value] | dict[Value, Value] | None"

LARGEST = 256 << 10
"""Limit on the bytes of a file; PyYAML reads some 100,000 a second."""
MOST = 100_000
"""Limit on the number of values in a file; an alias counts as all the values that it stands for."""


def read_yaml(path: Path) -> Value:
    """Return the content of the YAML or JSON file `path`; times (2:00:00) and dates stay text.

    Raise :class:`BenchError` for a file that cannot be read, is not a regular file or is too large, and for anything
    but YAML of text, finite numbers, booleans, null, lists and mappings.
    """
    try:
        text = read_plain(path, LARGEST, links=True).decode("utf-8-sig")
        found: Value = yaml.load(text, Loader=_loader())
        _check(found)
    except OSError as error:
        raise BenchError(f"{path} cannot be read: {error.strerror}.") from error
    except RecursionError as error:
        raise BenchError(f"{path} cannot be read as YAML: it is nested too deeply.") from error
    except (yaml.YAMLError, ValueError) as error:
        why = (str(error).splitlines() or ["it is damaged"])[0].rstrip(".")
        raise BenchError(f"{path} cannot be read as YAML: {why}.") from error
    except (TypeError, LookupError, AttributeError, ArithmeticError) as error:  # from PyYAML's constructors
        raise BenchError(f"{path} cannot be read as YAML: a tag does not fit its value.") from error
    return found


@functools.cache
def _loader() -> type[yaml.SafeLoader]:
    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        # YAML 1.1 reads 2:00:00 as a number in base 60, and 2026-13-45 as a date that does not exist.
        yaml_implicit_resolvers: ClassVar = {
            first: [
                ("tag:yaml.org,2002:str", re.compile(r"(\d+-)?\d+(:\d+)+$")),
                *(one for one in others if one[0] != "tag:yaml.org,2002:timestamp"),
            ]
            for first, others in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    return Loader


def _check(value: Value) -> None:
    left, count = [value], 0
    while left:
        one, count = left.pop(), count + 1
        if count > MOST:
            raise ValueError(f"it holds more than {MOST:,} values, or one that contains itself")
        if isinstance(one, dict):
            left += [*one.keys(), *one.values()]
        elif isinstance(one, list):
            left += one
        elif isinstance(one, float) and not math.isfinite(one):
            raise ValueError(f"{one} is not a finite number")
        elif isinstance(one, int) and abs(one) >= 1 << 63:
            raise ValueError("a whole number is too large")
        elif not isinstance(one, str | int | float | None):
            raise ValueError(f"a {type(one).__name__} is neither text, number, list nor mapping")
