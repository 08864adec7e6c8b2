"""Controls of an attack: the student's net, trained differently. Students with the same net and data share them.

- non-private: trained on all private records without noise. An attack that fails on it is inconclusive.
- matched: the same training, stopped at the student's test accuracy: shows the effect of low accuracy alone.
- counterfactual: trained on disjoint records of the same classes, or on other people: what an attack learns anyway.
- prior: not trained: what an attack produces by itself.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

import torch

from bench.core.seeds import Streams, seeded
from bench.core.types import Facts, Released
from bench.data.splits import Materialised
from bench.interface.registry import METHODS
from bench.models.build import build
from bench.models.frozen_backbone import FrozenTransfer
from bench.results.attack_record import Role
from bench.storage.cache import Arrays
from bench.training.context import Context
from bench.training.features import Part, trained_part
from bench.training.loop import FitSettings, fit
from bench.training.loop import accuracy as measure

CONTROL_VERSION = 2  # part of the artefact's key; increment when a control changes for equal inputs
CHECKS = 200
"""Tests of a matched control in its first steps, where accuracy rises fastest, and over the whole training."""


def make_control(
    role: Role,
    student: Released,
    accuracy: float,
    material: Materialised,
    disjoint: tuple[torch.Tensor, torch.Tensor] | None,
    preset: str,
    seed: int,
    context: Context,
) -> Released | None:
    """Return the control `role` of a `student` with test `accuracy`; None for a counterfactual without `disjoint`."""
    facts = material.private.facts
    depends: dict[str, Any] = {
        "version": CONTROL_VERSION, "role": role.value, "net": student.student_name, "options": student.student_options,
        "preset": preset, "seed": seed, "device": context.device.type, "recipe": repr(recipe(facts, preset)),
    }  # fmt: skip
    # Use the same draws, so that a matched control is a state on the non-private control's training path.
    streams = Streams(seed, f"control/{Role.NON_PRIVATE if role is Role.MATCHED else role}/")
    if len(material.private) < facts.private_records:
        depends["records"] = len(material.private)
    images, labels, settings = material.private.images, material.private.labels, recipe(facts, preset)
    part: Part = "private"
    if role is Role.MATCHED:
        depends["accuracy"] = round(accuracy, 4)
    elif role is Role.COUNTERFACTUAL:
        if disjoint is None:
            return None
        depends["disjoint"] = content_digest(*disjoint)
        (images, labels), part = disjoint, "counterfactual"
        settings = recipe(facts, preset, len(images))

    def make() -> Arrays:
        net = fresh(student, streams)
        if role is not Role.PRIOR:
            trained, inputs = trained_part(net, images, context, part)
            stop = _as_accurate(net, accuracy, material, settings, context) if role is Role.MATCHED else None
            with context.stage("control", depends, settings.total_steps(len(images))) as (saved, stage):
                fit(
                    trained, inputs, labels, settings, streams.torch("order"),
                    device=context.device, stage=stage, checkpoint=saved, stop=stop,
                )  # fmt: skip
        return {name: tensor.detach().cpu().numpy() for name, tensor in net.state_dict().items()}

    state = context.cache.get("control", depends, make)
    net = build(student.student_name, **student.student_options)
    net.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in state.items()})
    return Released(net.eval(), student.student_name, student.student_options)


def recipe(facts: Facts, preset: str, records: int | None = None) -> FitSettings:
    """Return the training settings of a control: the non-private baseline's at this preset, for `records`."""
    facts = facts if records is None else dataclasses.replace(facts, private_records=records)
    baseline = METHODS.get("nonprivate")
    config = baseline.Config(**baseline.presets(facts).get(preset, {}))
    return FitSettings(
        epochs=config.epochs, batch_size=min(config.batch_size, max(1, facts.private_records // 4)), lr=config.lr,
        momentum=config.momentum,
    )  # fmt: skip


def fresh(student: Released, streams: Streams) -> torch.nn.Module:
    """Return a new net of the student's architecture with weights from `streams`."""
    with seeded(streams.torch("start")):
        net = build(student.student_name, **student.student_options)
    if isinstance(net, FrozenTransfer) and isinstance(student.student, FrozenTransfer) and net.backbone.spec.carried:
        # An embedded backbone is public, like a named one.
        net.backbone.load_state_dict(student.student.backbone.state_dict())
    return net


def _as_accurate(
    net: torch.nn.Module, accuracy: float, material: Materialised, settings: FitSettings, context: Context
) -> Callable[[int], bool]:
    """Return the `stop` argument of :func:`bench.training.loop.fit` that ends `net`'s training at test `accuracy`."""
    trained, tested = trained_part(net, material.test_images, context, "test")
    every = max(1, settings.total_steps(len(material.private)) // CHECKS)

    def stop(step: int) -> bool:
        due = step < CHECKS or step % every == 0
        return due and measure(trained, tested, material.test_labels, device=context.device) >= accuracy

    return stop


def content_digest(*tensors: torch.Tensor) -> str:
    """Return a digest of public images or released tensors, for cache keys."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:20]


def weights_digest(released: Released) -> str:
    """Return a digest of a student's architecture and weights, for cache keys."""
    digest = hashlib.sha256(f"{released.student_name}{released.student_options}".encode())
    for name, tensor in sorted(released.student.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:20]
