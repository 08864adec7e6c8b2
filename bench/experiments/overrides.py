"""Settings that calibration overwrites: setting one by hand is an error and is not silently ignored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from bench.core.config import Preset, build_config
from bench.core.errors import BenchError
from bench.core.types import Budget, Facts
from bench.interface.method import Method


def check_kept(
    method: type[Method], start: Any, found: Any, overrides: Mapping[str, Any], calibrate: Callable[[Any], Any],
    preset: Preset, facts: Facts, budget: Budget,
) -> None:  # fmt: skip
    """Raise :class:`BenchError` for a number in `overrides` that `calibrate`, from `start` to `found`, ignores.

    A number that it scales, such as a ratio or a learning rate, passes, and so does one that another override moves.
    """

    def calibrated(field: str, config: object) -> Any:
        try:
            return getattr(calibrate(config), field)
        except BenchError:
            return None

    for field, asked in overrides.items():
        final = getattr(found, field)
        if final == asked or isinstance(asked, bool) or not isinstance(asked, int | float):
            continue
        near = replace(start, **{field: asked + 1 if isinstance(asked, int) else 1.01 * asked})
        if calibrated(field, near) not in (final, None):
            continue
        if calibrated(field, build_config(method, preset, facts, {field: asked})[0]) == asked:
            continue
        target = f" (epsilon {budget.epsilon:g}, {budget.basis.value})" if method.private else ""
        raise BenchError(
            f"--set {method.name}.{field}={asked} has no effect: calibration sets it to {final:.6g}{target}. Leave it "
            "out; --eps and the data set determine it."
        )
