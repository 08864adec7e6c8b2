"""The base of methods and attacks: class attributes of a registered class, and the config and facts of an object."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, ClassVar, Generic, get_args

from typing_extensions import TypeVar

from bench.core.types import Facts

C_co = TypeVar("C_co", covariant=True, default=Any)
"""The frozen dataclass of the settings."""


class Bound(Generic[C_co]):
    """An object bound to one config and the public facts of one data set: ``self.config`` and ``self.facts``."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Part of every key: increment it whenever the same config gives a different result."""
    Config: ClassVar[type]
    """The dataclass of the settings: that of ``Method[...]`` or of an attack's base, or of a subclass's annotation
    ``config: MyConfig``."""
    citation: ClassVar[str] = ""

    def __init__(self, config: C_co, facts: Facts) -> None:
        self.config, self.facts = config, facts

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        stated = [argument for base in vars(cls).get("__orig_bases__", ()) for argument in get_args(base)]
        own: Any = vars(cls).get("__annotations__", {}).get("config")
        if isinstance(own, str):  # annotations are strings under `from __future__ import annotations`
            own = getattr(sys.modules[cls.__module__], own, None)
        for config in (*stated, own):
            if isinstance(config, type) and is_dataclass(config):
                cls.Config = config

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        """Return the settings that ``quick`` and ``tiny`` change from the paper's config, by field; default: none."""
        return {"quick": {}, "tiny": {}}
