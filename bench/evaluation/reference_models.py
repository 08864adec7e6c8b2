"""Controls of an attack on a student: the same net, trained otherwise or not at all.

==============  =======================================================================================================
non-private     trained on all private records without noise. An attack that does not break it is inconclusive.
matched         the same training, from the same start and in the same order, stopped as soon as a test finds it as
                accurate as the student: what low accuracy alone hides.
counterfactual  trained on disjoint records of the same classes (or, where a class is a person, on other people): what
                an attacker learns although nobody's record was in the training set.
prior           not trained at all: what the attack makes up by itself.
==============  =======================================================================================================

All are artefacts, shared by every student of the same net on the same data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from bench.core.seeds import Streams
from bench.core.types import Facts, Released
from bench.results.attack_record import Role
from bench.training.context import Context

if TYPE_CHECKING:
    import torch

    from bench.data.splits import Materialised
    from bench.storage.cache import Arrays
    from bench.training.features import Part
    from bench.training.loop import FitSettings

    Until = Callable[[torch.nn.Module], Callable[[int], bool]]
    """Given the net in training, returns what :func:`bench.training.loop.fit` asks whether to stop."""

CONTROL_VERSION = 2
"""Raised whenever a control would come out otherwise: part of the key of its artefact. Before 2 a matched control was
trained in pieces at a fifth of the rate, which was not in the key: such a net must not be a cache hit."""
CHECKS = 200
"""A matched control is tested before each of so many first steps, where accuracy climbs fastest, and then so many times
at regular steps, if it goes through the whole training."""


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
    """Return the control `role` of a `student` that has this test `accuracy`; None where it cannot be had.

    `disjoint` are the images and labels of the counterfactual target, None where there are none.
    """
    facts = material.private.facts
    depends: dict[str, Any] = {
        "version": CONTROL_VERSION, "role": role.value, "net": student.student_name, "options": student.student_options,
        "preset": preset, "seed": seed, "device": context.device.type, "recipe": repr(recipe(facts, preset)),
    }  # fmt: skip
    # A matched control draws what the non-private one draws: it is a state that the other one goes through.
    streams = Streams(seed, f"control/{Role.NON_PRIVATE if role is Role.MATCHED else role}/")
    settings = recipe(facts, preset)
    if role in (Role.NON_PRIVATE, Role.MATCHED):
        until = None
        if role is Role.MATCHED:
            depends["accuracy"] = round(accuracy, 4)
            until = _as_accurate(material, accuracy, settings, context)
        private = material.private
        make = _trained(student, private.images, private.labels, settings, streams, context, "private", depends, until)
    elif role is Role.COUNTERFACTUAL:
        if disjoint is None:
            return None
        depends["disjoint"] = content_digest(*disjoint)
        apart = recipe(facts, preset, len(disjoint[0]))
        make = _trained(student, *disjoint, apart, streams, context, "counterfactual", depends)
    else:
        make = _untrained(student, streams)
    state = context.cache.get("control", depends, lambda: _arrays(make()))
    return _released(student, state)


def recipe(facts: Facts, preset: str, records: int | None = None) -> FitSettings:
    """Return how a control is trained: as the baseline without privacy is, in this preset, on so many records."""
    import dataclasses

    from bench.training.loop import FitSettings
    from methods.nonprivate import NonPrivate

    facts = facts if records is None else dataclasses.replace(facts, private_records=records)
    config = NonPrivate.Config(**NonPrivate.presets(facts).get(preset, {}))
    return FitSettings(
        epochs=config.epochs, batch_size=min(config.batch_size, max(1, facts.private_records // 4)), lr=config.lr,
        momentum=config.momentum,
    )  # fmt: skip


def fresh(student: Released, streams: Streams) -> torch.nn.Module:
    """Return a new net of the student's architecture with weights from `streams`."""
    from bench.core.seeds import seeded
    from bench.models.build import build
    from bench.models.frozen_backbone import FrozenTransfer

    with seeded(streams.torch("start")):
        net = build(student.student_name, **student.student_options)
    if isinstance(net, FrozenTransfer) and isinstance(student.student, FrozenTransfer) and net.backbone.spec.carried:
        # A backbone that the release carries is as public as one that it names: the control has the same.
        net.backbone.load_state_dict(student.student.backbone.state_dict())
    return net


def _untrained(student: Released, streams: Streams) -> Callable[[], torch.nn.Module]:
    return lambda: fresh(student, streams)


def _trained(
    student: Released,
    images: torch.Tensor,
    labels: torch.Tensor,
    settings: FitSettings,
    streams: Streams,
    context: Context,
    part: Part,
    depends: Mapping[str, Any],
    until: Until | None = None,
) -> Callable[[], torch.nn.Module]:
    def make() -> torch.nn.Module:
        from bench.training.features import trained_part
        from bench.training.loop import fit

        net = fresh(student, streams)
        trained, inputs = trained_part(net, images, context, part)
        order, stop = streams.torch("order"), None if until is None else until(net)
        with (
            context.checkpoint("control", depends) as saved,
            context.progress.stage("control", settings.total_steps(len(images))) as stage,
        ):
            fit(
                trained, inputs, labels, settings, order,
                device=context.device, stage=stage, checkpoint=saved, stop=stop,
            )  # fmt: skip
        return net.eval()

    return make


def _as_accurate(material: Materialised, accuracy: float, settings: FitSettings, context: Context) -> Until:
    """Return what stops a training of `settings` where the test accuracy is at least `accuracy`."""
    every = max(1, settings.total_steps(len(material.private)) // CHECKS)

    def until(net: torch.nn.Module) -> Callable[[int], bool]:
        from bench.training.features import trained_part
        from bench.training.loop import accuracy as measure

        trained, tested = trained_part(net, material.test_images, context, "test")

        def stop(step: int) -> bool:
            due = step < CHECKS or step % every == 0
            return due and measure(trained, tested, material.test_labels, device=context.device) >= accuracy

        return stop

    return until


def _arrays(net: torch.nn.Module) -> Arrays:
    return {name: tensor.detach().cpu().numpy() for name, tensor in net.state_dict().items()}


def _released(student: Released, state: Arrays) -> Released:
    import torch

    from bench.models.build import build

    net = build(student.student_name, **student.student_options)
    net.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in state.items()})
    return Released(net.eval(), student.student_name, student.student_options)


def content_digest(*tensors: torch.Tensor) -> str:
    """Return a digest of public images, or of what was released, for keys of what was made from them."""
    import hashlib

    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:20]


def weights_digest(released: Released) -> str:
    """Return a digest of a student's net and weights, for keys of what was made from it."""
    import hashlib

    digest = hashlib.sha256(f"{released.student_name}{released.student_options}".encode())
    for name, tensor in sorted(released.student.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:20]
