"""DP-SGD refuses nets and losses in which a gradient depends on more than its own example."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from bench.core.errors import BenchError
from bench.privacy.dpsgd import dp_sgd
from helpers.dp_sgd_training import trained, weights


def centred(logits, labels):
    return cross_entropy(logits - logits.mean(0), labels)


def contrastive(logits, labels):
    alike = (labels[:, None] == labels).float()
    return cross_entropy(logits, labels) + ((logits @ logits.T) * alike).mean()


def summed(logits, labels):
    return cross_entropy(logits, labels, reduction="sum")


def hardest(logits, labels):
    """The loss of a batch's worst example."""
    return cross_entropy(logits, labels, reduction="none").max()


@pytest.mark.parametrize("loss", [centred, contrastive, summed, hardest])
def test_a_loss_that_couples_the_examples_of_a_batch_is_refused(loss) -> None:
    with pytest.raises(BenchError, match="couples the examples of a batch"):
        trained(loss=loss)


def test_a_net_that_couples_the_examples_of_a_batch_is_refused() -> None:
    class Standardised(torch.nn.Module):
        def forward(self, x):
            return (x - x.mean(0)) / (x.std(0, unbiased=False) + 1e-3)

    with pytest.raises(BenchError, match="couples the examples of a batch"):
        trained(torch.nn.Sequential(torch.nn.Flatten(), Standardised(), torch.nn.Linear(4, 3)))


class Mixed(torch.nn.Module):
    """Mixup (Zhang et al. 2018) in training, which draws partners and shares like dropout its masks."""

    def forward(self, x):
        if not self.training:
            return x
        share = 0.5 * torch.rand(())
        return (1 - share) * x + share * x[torch.randperm(len(x))]


class Centred(torch.nn.Module):
    """Subtracts a batch's mean from full batches only, up to random changes."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least = least

    def forward(self, x):
        return x - x.mean(0) + 1e-4 * torch.rand(()) if self.training and len(x) >= self.least else x


@pytest.mark.parametrize("layer", [Mixed(), Centred(1), Centred(24)])
def test_a_layer_that_mixes_examples_in_training_is_refused(layer: torch.nn.Module) -> None:
    with pytest.raises(BenchError, match="couples the examples of a batch"):
        trained(torch.nn.Sequential(torch.nn.Flatten(), layer, torch.nn.Linear(4, 3)), expected_batch_size=32)


def test_a_loss_that_couples_later_is_found_at_a_step_that_it_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dp_sgd.secrets, "randbelow", lambda count: count - 2)
    batches = []

    def later(logits, labels):
        batches.append(len(labels))
        return (centred if len(batches) > 40 else cross_entropy)(logits, labels)

    with pytest.raises(BenchError, match="couples the examples of a batch"):
        trained(loss=later, steps=40)


@pytest.mark.parametrize("dropout", [False, True])
def test_the_comparison_of_gradients_changes_nothing(dropout: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def net():
        torch.manual_seed(1)
        layers = [torch.nn.Dropout(0.5)] if dropout else []
        return torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(4, 8), torch.nn.Tanh(), *layers, torch.nn.Linear(8, 3)
        )

    # They are compared before the first step and before one later step.
    found = []
    for later in (0, 3):
        monkeypatch.setattr(dp_sgd.secrets, "randbelow", lambda count, later=later: later)
        model = trained(net())
        assert all(layer.training for layer in model.modules())
        found.append(weights(model))
    assert found[0] == found[1]


def test_dropout_that_cannot_be_turned_off_is_refused() -> None:
    from torch.nn.functional import cross_entropy, dropout

    with pytest.raises(BenchError, match="random numbers"):
        trained(loss=lambda logits, labels: cross_entropy(dropout(logits, 0.5), labels))


def test_statistics_of_batches_in_buffers_are_refused() -> None:
    class Mean(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x):
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            return x

    with pytest.raises(BenchError, match="a pass changed the"):
        trained(torch.nn.Sequential(torch.nn.Flatten(), Mean(), torch.nn.Linear(4, 3)))
