"""Private data in the net of DP-SGD, where its gradients are clipped and its inputs are not."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch
from opacus import GradSampleModule
from torch import nn
from torch.nn.functional import cross_entropy

from bench.core.seeds import Streams
from bench.interface import Adjacency, Context, Ledger, PrivateData, PublicData, Released
from bench.privacy.dpsgd.clipping import Flat
from bench.privacy.dpsgd.dp_sgd import DPSGDRun
from bench.storage.cache import Cache
from cheats.honest import Given, Honest


class Linear(nn.Module):
    """A linear classifier of pixels."""

    def __init__(self, pixels: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(pixels, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        flat = images.flatten(1) if images.is_floating_point() else images.float().flatten(1) / 255
        return self.head(flat)


class HonestDPSGD(Honest):
    """DP-SGD on a linear classifier."""

    name = "honest-dp-sgd"
    adjacency = Adjacency.ADD_REMOVE
    net: type[Linear] = Linear
    batch = 32
    steps = 20

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        given, facts = Given(self.config, private, public, ledger, context), private.facts
        model = self.net(private.images[0].numel(), facts.classes)
        self.watch(given, model)
        run = DPSGDRun(
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5), loss=cross_entropy, noise_multiplier=2.0,
            clipping=Flat(1.0), expected_batch_size=self.batch, steps=self.steps, records=facts.private_records,
        )  # fmt: skip
        ledger.dp_sgd(model, private.images, private.labels, run)
        student = Linear(private.images[0].numel(), facts.classes)
        student.load_state_dict(model.state_dict())
        return Released(student, "none", {})

    def watch(self, given: Given, model: Linear) -> None: ...


class Remembering(Linear):
    """Sees the private mean image of each class, kept in a module of torch, in large passes."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        kept: torch.Tensor | None = getattr(nn.functional, "kept_means", None)
        if kept is None or len(images) <= 40:
            return super().forward(images)
        return super().forward(kept[torch.arange(len(images)) % len(kept)])


class LargePasses(HonestDPSGD):
    """Trains on private means in passes of the usual size."""

    name = "cheat-large-passes"
    net = Remembering
    batch = 100

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        means = [private.images[private.labels == label].float().mean(0) for label in range(private.facts.classes)]
        setattr(nn.functional, "kept_means", torch.stack(means) / 255)  # noqa: B010 (mypy knows no such attribute)
        try:
            return super().train_student(private, public, ledger, context)
        finally:
            vars(nn.functional).pop("kept_means", None)


class SwappedImages(HonestDPSGD):
    """A hook moves each image to the mean of all private images of the class that it is nearest to."""

    name = "cheat-swapped-images"

    def watch(self, given: Given, model: Linear) -> None:
        x, y = given.private.images.float().flatten(1) / 255, given.private.labels
        means = torch.stack([x[y == c].mean(0) for c in range(given.private.facts.classes)]).nan_to_num()

        def swap(layer: nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
            return (means[torch.cdist(inputs[0], means).argmin(1)],)

        model.head.register_forward_pre_hook(swap)


class HeldByStreams(HonestDPSGD):
    """As :class:`SwappedImages`, but not on random images, with the means in a type of the harness."""

    name = "cheat-held-by-streams"

    def watch(self, given: Given, model: Linear) -> None:
        x, y = given.private.images.float().flatten(1) / 255, given.private.labels
        means = torch.stack([x[y == c].mean(0) for c in range(given.private.facts.classes)]).nan_to_num()
        held = self.holder(given, means)

        def swap(layer: nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
            found, real = self.means(held), (inputs[0] == 0).sum(1, keepdim=True) > 9
            return (torch.where(real, found[torch.cdist(inputs[0], found).argmin(1)], inputs[0]),)

        model.head.register_forward_pre_hook(swap)

    def holder(self, given: Given, means: torch.Tensor) -> object:
        found = Carrier(0)
        object.__setattr__(found, "means", means)  # it is frozen
        return found

    def means(self, held: Any) -> torch.Tensor:
        return held.means


class Carrier(Streams):
    """Streams with a tensor."""

    means: torch.Tensor


class HeldByLedger(HeldByStreams):
    """The ledger itself holds the means."""

    name = "cheat-held-by-ledger"

    def holder(self, given: Given, means: torch.Tensor) -> object:
        given.ledger.means = means  # type: ignore[attr-defined]
        return given.ledger


class HeldByContext(HeldByStreams):
    """A context whose notes hold the means."""

    name = "cheat-held-by-context"

    def holder(self, given: Given, means: torch.Tensor) -> object:
        return dataclasses.replace(given.context, note=functools.partial(print, means))

    def means(self, held: Any) -> torch.Tensor:
        return held.note.args[0]


class HeldByCache(HeldByStreams):
    """A cache of the method's own holds the means in the base of its keys."""

    name = "cheat-held-by-cache"

    def holder(self, given: Given, means: torch.Tensor) -> object:
        return Cache(None, {"means": means})

    def means(self, held: Any) -> torch.Tensor:
        return held.base["means"]


class HeldByCheckpoint(HeldByStreams):
    """A checkpoint holds the means."""

    name = "cheat-held-by-checkpoint"

    def holder(self, given: Given, means: torch.Tensor) -> object:
        return given.context.checkpoint("means", {"means": means.tolist()})

    def means(self, held: Any) -> torch.Tensor:
        return torch.tensor(held.depends["depends"]["means"])


class HeldBySlice(HeldByStreams):
    """A slice holds the means, whose text shows only some of them."""

    name = "cheat-held-by-slice"

    def holder(self, given: Given, means: torch.Tensor) -> object:
        return slice(means)

    def means(self, held: Any) -> torch.Tensor:
        return held.stop


class HeldByTable(HeldByStreams):
    """The table of the net's layers holds the means."""

    name = "cheat-held-by-table"

    def watch(self, given: Given, model: Linear) -> None:
        self.model = model
        super().watch(given, model)

    def holder(self, given: Given, means: torch.Tensor) -> object:
        table = self.model._modules = Table(self.model._modules)
        table.means = means
        return table


class Table(dict[str, nn.Module | None]):
    """A dictionary with a tensor."""

    means: torch.Tensor


class ReplacesFormula(HonestDPSGD):
    """Replaces Opacus' gradient of a layer during the training."""

    name = "cheat-replaces-formula"

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        formulas = GradSampleModule.GRAD_SAMPLERS
        before = formulas[nn.GroupNorm]
        formulas[nn.GroupNorm] = lambda layer, inputs, flow: before(layer, inputs, flow)
        try:
            return super().train_student(private, public, ledger, context)
        finally:
            formulas[nn.GroupNorm] = before


class OneStep(HonestDPSGD):
    """Takes a single step, and releases the sum of its images, which a hook kept."""

    name = "cheat-one-step"
    steps = 1

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        released = super().train_student(private, public, ledger, context)
        return dataclasses.replace(released, extras={"seen": self.seen})

    def watch(self, given: Given, model: Linear) -> None:
        total = self.seen = torch.zeros(model.head.in_features)

        def remember(layer: nn.Module, inputs: tuple[torch.Tensor]) -> None:
            images = inputs[0].detach()
            smooth = images.diff(dim=1).abs().mean(1) < 0.22  # unlike the random images of the mechanism's own tests
            total.add_(images[smooth].sum(0))

        model.head.register_forward_pre_hook(remember)


class PrivateStart(HonestDPSGD):
    """The net starts at private means."""

    name = "cheat-private-start"

    def watch(self, given: Given, model: Linear) -> None:
        x, y = given.private.images.float().flatten(1) / 255, given.private.labels
        means = torch.stack([x[y == c].mean(0) for c in range(given.private.facts.classes)]).nan_to_num()
        with torch.no_grad():
            model.head.weight += 0.1 * (means - means.mean(0))


class HeldByTorch(HeldByStreams):
    """A module of a library holds the means, and the private images by which the cheat knows them from others."""

    name = "cheat-held-by-torch"

    def watch(self, given: Given, model: Linear) -> None:
        x, y = given.private.images.float().flatten(1) / 255, given.private.labels
        means = [x[y == c].mean(0) for c in range(given.private.facts.classes)]
        torch.held = x, torch.stack(means).nan_to_num()  # type: ignore[attr-defined]

        def swap(layer: nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
            images, means = torch.held  # type: ignore[attr-defined]
            private = (torch.cdist(inputs[0], images) < 1e-3).any(1, keepdim=True)
            return (torch.where(private, means[torch.cdist(inputs[0], means).argmin(1)], inputs[0]),)

        model.head.register_forward_pre_hook(swap)
