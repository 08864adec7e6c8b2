"""Federated methods whose server distils the ensemble of its clients' models, on images that it makes from them.

Zhang et al., "DENSE: Data-Free One-Shot Federated Learning", NeurIPS 2022 (arXiv:2112.12371), section 2: the ensemble
gives the mean of the models' logits. Fed-DAFL and Fed-ADI are that paper's names for DAFL and Adaptive DeepInversion on
that ensemble.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bench.core.progress import Stage
from bench.interface import (
    BenchError,
    Context,
    Facts,
    Ledger,
    PrivateData,
    PublicData,
    Released,
    as_float,
    features_and_logits,
    make_student,
)
from bench.methods.federated.family import Federated, ServerConfig, client_parts, first_models, net_of, quick_clients
from bench.methods.shared.settings_checks import SHOWN, student_depends
from bench.storage.checkpoint import Checkpoint, Loop, Part
from bench.training.divergence import check_finite, descend
from bench.training.loop import Batches, FitSettings, make_optimizer


class Ensemble(nn.Module):
    """Models whose mean logits (n, classes) are the output; features of all models are concatenated."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, images: Tensor) -> Tensor:
        return torch.stack([model(images) for model in self.models]).mean(0)

    def features_and_logits(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the last hidden layers (n, models * features) and the mean logits."""
        features, logits = zip(*(features_and_logits(model, images) for model in self.models), strict=True)
        return torch.cat(features, 1), torch.stack(logits).mean(0)


class BatchStatistics:
    """Distance between an ensemble's batch normalisation inputs and its running statistics, in a forward pass.

    DeepInversion's regulariser (Yin et al., CVPR 2020, Eq. 4): the distances of means and of variances, summed over
    layers and averaged over models. Passes without gradients do not count.
    """

    def __init__(self, ensemble: Ensemble) -> None:
        self._models, self._terms = len(ensemble.models), list[Tensor]()
        layers = [layer for layer in ensemble.modules() if isinstance(layer, nn.BatchNorm2d)]
        if not layers:
            raise BenchError(
                "the clients' net has no batch normalisation, whose statistics this method matches. Take "
                "small_cnn_bn or another timm model with BatchNorm2d as student, or the method fed-dafl."
            )
        for layer in layers:
            layer.register_forward_pre_hook(self._seen)

    def _seen(self, layer: nn.Module, inputs: tuple[Tensor]) -> None:
        if not torch.is_grad_enabled():
            return
        values = inputs[0]
        assert isinstance(layer, nn.BatchNorm2d)
        assert layer.running_mean is not None
        assert layer.running_var is not None
        mean, variance = values.mean((0, 2, 3)), values.var((0, 2, 3), correction=0)
        self._terms.append((layer.running_mean - mean).norm() + (layer.running_var - variance).norm())

    def take(self) -> Tensor:
        """Return the regularisation term of the passes since the last call."""
        total, self._terms = torch.stack(self._terms).sum() / self._models, []
        return total


@dataclass(frozen=True, slots=True)
class Server:
    """The inputs from which a server makes images: the ensemble, the current student, random numbers."""

    ensemble: Ensemble
    student: nn.Module
    facts: Facts
    random: torch.Generator
    device: torch.device

    def classes(self, count: int) -> Tensor:
        """Return `count` random classes, (count,)."""
        return torch.randint(self.facts.classes, (count,), generator=self.random).to(self.device)


@dataclass(frozen=True, slots=True)
class Synthesiser:
    """Makes images (n, channels, height, width) in [0, 1], without gradients, for one epoch of the student.

    `parts` is the state that changes between epochs, for checkpoints. With `keeps` the student learns from all images
    so far, otherwise only from the last ones.
    """

    make: Callable[[], Tensor]
    parts: Mapping[str, Part] = field(default_factory=dict)
    keeps: bool = True


def softened_divergence(logits: Tensor, wanted: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the divergence KL(wanted || logits) of each row at `temperature`, times the temperature squared."""
    log_p, log_q = ((values / temperature).log_softmax(1) for values in (wanted, logits))
    return temperature**2 * (log_p.exp() * (log_p - log_q)).sum(1)


class _Pool:
    """All images so far, uint8, and the ensemble's logits of them."""

    def __init__(self) -> None:
        self.images, self.logits = torch.empty(0, dtype=torch.uint8), torch.empty(0)

    def add(self, images: Tensor, logits: Tensor, *, keep: bool) -> None:
        if keep and len(self.logits):
            images, logits = torch.cat([self.images, images]), torch.cat([self.logits, logits])
        self.images, self.logits = images, logits

    def state_dict(self) -> dict[str, Tensor]:
        return {"images": self.images, "logits": self.logits}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.images, self.logits = state["images"], state["logits"]


def distil(
    config: ServerConfig, server: Server, synthesiser: Synthesiser, stage: Stage, checkpoint: Checkpoint | None = None
) -> Tensor:
    """Train the server's student in place for all epochs; return the last images, uint8, on the CPU.

    Raise :class:`bench.training.divergence.NotFiniteError` if a loss is not finite.
    """
    student, random, device = server.student, server.random, server.device
    settings = FitSettings(
        steps=1, optimizer=config.student_optimizer, lr=config.student_lr, momentum=config.student_momentum
    )
    optimizer, pool = make_optimizer(student, settings), _Pool()
    held: dict[str, Part] = {"student": student, "optimizer": optimizer, "pool": pool, "random": random}
    loop = Loop(checkpoint, {**held, **synthesiser.parts}, device=device)
    for epoch in range(loop.start(stage), config.epochs):
        student.train(epoch == 0)  # as in DENSE's code, whose new student is still in training mode here
        images = (synthesiser.make() * 255).round().to(torch.uint8).cpu()
        with torch.no_grad():
            pool.add(images, server.ensemble(as_float(images.to(device))).cpu(), keep=synthesiser.keeps)
        student.train()
        batches = Batches(len(pool.logits), config.batch, random)
        for rows in itertools.islice(batches, config.student_steps or -(-len(pool.logits) // config.batch)):
            logits = student(as_float(pool.images[rows].to(device)))
            loss = softened_divergence(logits, pool.logits[rows].to(device), config.temperature).mean()
            descend(optimizer, loss)
        check_finite({"divergence": loss}, epoch, "the student")
        student.eval()
        stage.advance()
        loop.done(epoch + 1, config.epochs)
    return pool.images[-config.batch :]


class DistillingServer(Federated):
    """One round: clients send their models, the server makes images from them and distils them into a student."""

    bypass = "the student and the images it learns from are made from the clients' models without noise"
    quick_server: ClassVar[Mapping[str, Any]]
    """The changes of ``quick`` for the server."""
    tiny_server: ClassVar[Mapping[str, Any]]
    """The further changes of ``tiny`` for the server."""

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        quick = {**quick_clients(facts), **cls.quick_server}
        tiny = {"clients": 3, "local_epochs": 1.0, "epochs": 2, "batch": 16}
        return {"quick": quick, "tiny": {**quick, **tiny, **cls.tiny_server}}

    @abc.abstractmethod
    def synthesiser(self, server: Server) -> Synthesiser:
        """Return the maker of the images."""

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        """Train local models, then a student on images made from them, declared as a bypass."""
        ledger.bypass(self.bypass)
        facts, streams = private.facts, context.streams
        student, options = make_student(self.config.student, facts, streams.torch("student/start"))
        parts = client_parts(self.config.clients, self.config.concentration, private, context)
        states = first_models(self.config, private, parts, context)
        models = [net_of(self.config, facts, state, context) for state in states]
        random = streams.torch("server")
        server = Server(Ensemble(models).eval(), student.to(context.device), facts, random, context.device)
        depends = {"method": self.name, **student_depends(self.config, context)}
        with context.stage("server", depends, self.config.epochs, "distillation") as (checkpoint, stage):
            images = distil(self.config, server, self.synthesiser(server), stage, checkpoint)
        return Released(student, self.config.student, options, extras={"synthetic_images": images[:SHOWN]})
