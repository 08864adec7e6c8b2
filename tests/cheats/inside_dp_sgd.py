"""Private data in the net of DP-SGD, where its gradients are clipped and its inputs are not."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from bench.interface import Adjacency, Context, Ledger, PrivateData, PublicData, Released
from bench.privacy.dpsgd.clipping import Flat
from bench.privacy.dpsgd.dp_sgd import DPSGDRun
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

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        given, facts = Given(self.config, private, public, ledger, context), private.facts
        model = Linear(private.images[0].numel(), facts.classes)
        self.watch(given, model)
        run = DPSGDRun(
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5), loss=cross_entropy, noise_multiplier=2.0,
            clipping=Flat(1.0), expected_batch_size=32, steps=20, records=facts.private_records,
        )  # fmt: skip
        ledger.dp_sgd(model, private.images, private.labels, run)
        student = Linear(private.images[0].numel(), facts.classes)
        student.load_state_dict(model.state_dict())
        return Released(student, "none", {})

    def watch(self, given: Given, model: Linear) -> None: ...


class SwappedImages(HonestDPSGD):
    """A hook moves each image to the mean of all private images of the class that it is nearest to."""

    name = "cheat-swapped-images"

    def watch(self, given: Given, model: Linear) -> None:
        x, y = given.private.images.float().flatten(1) / 255, given.private.labels
        means = torch.stack([x[y == c].mean(0) for c in range(given.private.facts.classes)]).nan_to_num()

        def swap(layer: nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
            return (means[torch.cdist(inputs[0], means).argmin(1)],)

        model.head.register_forward_pre_hook(swap)


class PrivateStart(HonestDPSGD):
    """The net starts at private means."""

    name = "cheat-private-start"

    def watch(self, given: Given, model: Linear) -> None:
        x, y = given.private.images.float().flatten(1) / 255, given.private.labels
        means = torch.stack([x[y == c].mean(0) for c in range(given.private.facts.classes)]).nan_to_num()
        with torch.no_grad():
            model.head.weight += 0.1 * (means - means.mean(0))
