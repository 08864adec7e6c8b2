"""Modules imported at first use."""

from __future__ import annotations

import sys

import pytest

from bench.core.lazy import LazyModule


def test_submodules_are_attributes_and_missing_names_are_attribute_errors() -> None:
    sys.modules.pop("wsgiref.util", None)
    lazy = LazyModule("wsgiref")
    assert lazy.util is sys.modules["wsgiref.util"]
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        _ = lazy.nothing_of_that_name
