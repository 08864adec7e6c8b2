"""Teachers that start from public weights, and students on the same public backbone.

The weights' training set is public data, which the row names; no guarantee covers private records in it. Frozen layers
process each image separately, so one record still changes only one teacher. A student contains no layer trained on
private records.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bench.core.seeds import seeded
from bench.interface import BenchError, Context, Facts, FitSettings, make_student
from bench.methods.shared.start_config import ON_BACKBONE, RANDOM, PublicStartConfig
from bench.methods.shared.transfer import TransferConfig, make_transfer, public_spec, with_digest, words_of
from bench.models.build import build
from bench.models.feature_net import FixedMap, OnFixedMap
from bench.models.frozen_backbone import BackboneSpec, FrozenBackbone
from bench.models.public_layers import ALL, NONE, VERSION, block_problem, load_layers
from bench.training.features import features_of
from bench.training.features import trained_part as trained_part
from bench.training.features import uncached_features as uncached_features


def _transfer(config: PublicStartConfig) -> TransferConfig:
    return TransferConfig(
        backbone=config.teacher, weights=config.teacher_init, weights_sha256=config.teacher_init_sha256,
        image_size=config.teacher_pixels, precision="bfloat16" if config.teacher_bf16 else "float32",
    )  # fmt: skip


def pinned(config: Any, facts: Facts) -> Any:
    """Return `config` with its public weights named by digest; raise BenchError for settings that do not fit."""
    if config.teacher_init == RANDOM:
        return config
    if config.teacher_init not in ("package", "hub") and not config.teacher_init.startswith("file:"):
        raise BenchError(
            f"teacher_init={config.teacher_init} is not understood: write random, package, hub, file:PATH."
        )
    named = with_digest(_transfer(config), facts)
    if problem := block_problem(config.teacher, config.teacher_frozen):
        raise BenchError(f"teacher_frozen={config.teacher_frozen}: {problem}")
    return replace(config, teacher_init=named.weights, teacher_init_sha256=named.weights_sha256)


def words(config: PublicStartConfig, facts: Facts) -> str:
    """Return what the public weights were trained on, and its known overlap with the data, for the row."""
    return words_of(_transfer(config), facts)


class PublicStart:
    """The public layers of one net, as teachers and students use them."""

    def __init__(self, spec: BackboneSpec, frozen: str, facts: Facts) -> None:
        self.spec, self.frozen, self.facts = spec, frozen, facts

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of ``above_frozen``, a teacher's trained part."""
        return {} if self.frozen == ALL else {**self.spec.options(), "frozen": self.frozen}

    def settings(self, settings: FitSettings) -> FitSettings:
        """Return `settings` without shifts where inputs are features."""
        return settings if self.frozen == NONE else replace(settings, shift=0)

    def inputs(self, images: Tensor, context: Context) -> Tensor:
        """Return the trained parts' inputs for private uint8 `images`: cached outputs (n, d, 1, 1), or the images."""
        fixed = _fixed(self.spec, self.frozen)
        return images if fixed is None else features_of(images, fixed, context, "private")[:, :, None, None]

    def see(self, images: Tensor, context: Context) -> Tensor:
        """Return the inputs for queries, which are not cached."""
        fixed = _fixed(self.spec, self.frozen)
        return images if fixed is None else uncached_features(fixed, images, context, "queries")[:, :, None, None]

    def teacher(self, generator: torch.Generator) -> nn.Module:
        """Return an untrained teacher: public layers and a fresh head."""
        fixed = _fixed(self.spec, self.frozen)
        channels, height, width = self.facts.shape if fixed is None else (fixed.num_features, 1, 1)
        size = height if height == width else (height, width)
        with seeded(generator):
            above = build("above_frozen", self.facts.classes, channels, size, **self.options)
        return above if fixed is None else OnFixedMap(fixed, above, self.facts.classes)

    def student(self, generator: torch.Generator) -> tuple[nn.Module, dict[str, Any]]:
        """Return a linear student on the whole public backbone, and its timm options."""
        whole = _fixed(self.spec, ALL)
        assert isinstance(whole, FrozenBackbone)
        return make_transfer(whole, self.facts, 0, generator)


def start_of(config: object, facts: Facts, context: Context) -> PublicStart | None:
    """Return the public start of `config`'s teachers, its weights fetched; None if they start at random."""
    if not isinstance(config, PublicStartConfig) or config.teacher_init == RANDOM:
        return None
    return PublicStart(public_spec(_transfer(config), context), config.teacher_frozen, facts)


def fresh_teacher(
    config: PublicStartConfig, facts: Facts, context: Context, generator: torch.Generator
) -> tuple[PublicStart | None, nn.Module, nn.Module]:
    """Return the public start of an untrained teacher of `config`, the teacher, and the part of it to train."""
    start = start_of(config, facts, context)
    if start is None:
        net, _ = make_student(config.teacher, facts, generator)
        return None, net, net
    net = start.teacher(generator)
    return start, net, net.head if isinstance(net, OnFixedMap) else net


def start_depends(config: object, facts: Facts, context: Context) -> dict[str, Any]:
    """Return additional cache-key dependencies of trained teachers; empty if they start at random."""
    start = start_of(config, facts, context)
    return {} if start is None else {"start": [start.spec.identity(), start.frozen, VERSION]}


def make_public_student(
    config: PublicStartConfig, facts: Facts, context: Context, generator: torch.Generator
) -> tuple[nn.Module, dict[str, Any]]:
    """Return the student of `config` and its timm options; ``frozen_transfer`` is one on the teachers' backbone."""
    start = start_of(config, facts, context)
    if config.student == ON_BACKBONE and start is not None:
        return start.student(generator)
    return make_student(config.student, facts, generator)


@functools.lru_cache(maxsize=2)  # of the teachers and of the student
def _fixed(spec: BackboneSpec, frozen: str) -> FixedMap | None:
    return load_layers(spec, frozen)[0]
