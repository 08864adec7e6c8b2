"""PSG: what is charged and what is claimed, the images' steps, their checkpoint."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Facts
from bench.evaluation.audit.pair_runs import Runs, transcript
from bench.evaluation.audit.pairs import worst_pairs
from bench.methods.generative.psg import PSG, LearnedImages, PSGConfig, Standstill, distance
from bench.models.build import build
from bench.privacy.accounting.accountants import accountant, proven
from bench.privacy.dpsgd.clipping import Flat
from bench.privacy.dpsgd.dp_sgd import DPSGDRun
from bench.storage.cache import Cache
from bench.training.context import Context
from helpers.ledgers import seeded_ledger
from helpers.settings import configured
from helpers.small_sets import SMALL, private_pair, public_set

MNIST = Facts("mnist", 60_000, 9_000, 1_000, 10, (1, 28, 28))


def tiny(**changes: Any) -> PSGConfig:
    return PSGConfig(**{**PSG.presets(SMALL)["tiny"], **changes})


def learned(config: PSGConfig, seed: int = 0) -> tuple[torch.nn.Module, LearnedImages]:
    torch.manual_seed(0)
    net = build("convnet", 10, 1, 28, width=config.net_width)
    return net, LearnedImages(net, SMALL, config, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("outer_steps", "noise", "epsilon"),
    [(1, 1.879, 1.0), (1, 0.604, 10.0), (10, 5.510, 1.0), (10, 0.966, 10.0), (20, 7.756, 1.0), (20, 1.214, 10.0)],
)
def test_psgs_claim_is_its_epsilon_at_the_noise_of_its_code(outer_steps: int, noise: float, epsilon: float) -> None:
    """What ``compute_sigma`` gives for 1, 10 and 20 images of a class."""
    config = PSGConfig(outer_steps=outer_steps, noise_multiplier=noise)
    assert PSG(config, MNIST).claimed(1e-5).epsilon == pytest.approx(epsilon, rel=1e-3)
    assert proven(PSG(config, MNIST).charges(), 1e-5).epsilon < epsilon, "by the PLD, all starts cost less"


def test_the_claim_leaves_out_one_start() -> None:
    """By its own accounting, what the code runs at the noise for epsilon 10 costs more than it says."""
    claimed, run = (
        accountant("rdp")(events(PSG(PSGConfig(), MNIST)), 1e-5) for events in (PSG.claimed_charges, PSG.charges)
    )
    assert claimed is not None
    assert run is not None
    assert claimed.epsilon == PSG(PSGConfig(), MNIST).claimed(1e-5).epsilon
    assert claimed.epsilon < 10 < run.epsilon < 1.001 * claimed.epsilon


def test_every_noisy_gradient_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[LearnedImages] = []
    monkeypatch.setattr(LearnedImages, "after_step", lambda self: turns.append(self))
    config = tiny(runs=2, inner_epochs=1)
    context = Context(torch.device("cpu"), Streams(0), Cache(None, {}), Progress(), note=lambda text: None)
    ledger = seeded_ledger(PSG.unit, PSG.adjacency, np.random.default_rng(0))
    source = PSG(config, private_pair()[0].facts).fit_generator(private_pair()[0], public_set(), ledger, context)
    assert len(turns) == 3 * 2 * 2
    assert list(ledger.events) == list(PSG(config, SMALL).charges())
    images, labels = source.draw(60_000, torch.Generator())
    assert labels.bincount().tolist() == [2] * 10
    assert 0 <= float(images.min()) < float(images.max()) <= 1


def test_the_distance_is_one_minus_the_cosine_row_by_row_without_biases() -> None:
    one = [torch.tensor([[3.0, 4.0], [1.0, 0.0], [2.0, 0.0]]), torch.ones(3)]
    other = [torch.tensor([[6.0, 8.0], [0.0, 5.0], [-1.0, 0.0]]), -torch.ones(3)]
    assert float(distance(one, other)) == pytest.approx(0 + 1 + 2, abs=1e-5)


def test_images_learn_to_have_the_gradient_of_records() -> None:
    config = tiny(batches=10**6, image_lr=0.5)
    net, images = learned(config)
    private, _ = private_pair()
    real, labels = private.images[:40].float() / 255, private.labels[:40]
    wanted = torch.autograd.grad(functional.cross_entropy(net(real), labels), list(net.parameters()))

    def apart() -> float:
        loss = functional.cross_entropy(net((images.images.detach() + 1) / 2), images.labels)
        return float(distance(torch.autograd.grad(loss, list(net.parameters())), wanted))

    before = apart()
    weights = [parameter.detach().clone() for parameter in net.parameters()]
    for _ in range(15):
        for parameter, gradient in zip(net.parameters(), wanted, strict=True):
            parameter.grad = gradient.clone()
        images.after_step()
    assert apart() < 0.8 * before
    assert float(images.images.detach().abs().max()) <= 1
    assert all(torch.equal(a, b) for a, b in zip(weights, net.parameters(), strict=True)), "one batch after the other"


def played(steps: int, config: PSGConfig) -> tuple[torch.nn.Module, LearnedImages, Standstill]:
    net, images = learned(config)
    optimizer = Standstill(net.parameters(), images)
    for step in range(steps):
        torch.manual_seed(step)
        for parameter in net.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    return net, images, optimizer


def test_a_net_learns_the_images_and_starts_again_in_its_turn() -> None:
    config = tiny(batches=2, outer_steps=2, net_lr=0.05, inner_epochs=10)
    start, fresh = played(1, config)[0], played(4, config)[0]
    taught, images, _ = played(2, config)

    def loss(net: torch.nn.Module) -> float:
        return float(functional.cross_entropy(net((images.images.detach() + 1) / 2), images.labels).detach())

    assert loss(taught) < 0.9 * loss(start)
    assert loss(fresh) > loss(taught)
    assert torch.equal(next(played(3, config)[0].parameters()), next(taught.parameters()))


def test_what_is_released_is_the_mean_of_the_images_where_one_is_asked_for() -> None:
    seen = [played(steps, tiny())[1].images.detach() for steps in (1, 2, 3)]
    assert torch.equal(played(3, tiny())[1].mean, seen[2])
    assert torch.allclose(played(3, tiny(image_average=0.99))[1].mean, sum(seen) / 3, atol=1e-6)
    late = 0.5 * (0.5 * (seen[0] + seen[1])) + 0.5 * seen[2]
    assert torch.allclose(played(3, tiny(image_average=0.5))[1].mean, late, atol=1e-6)


def test_a_checkpoint_holds_the_images_and_their_turn() -> None:
    config = tiny()
    _, images, optimizer = played(3, config)
    net, other = learned(config, seed=1)
    fresh = Standstill(net.parameters(), other)
    fresh.load_state_dict(optimizer.state_dict())
    assert torch.equal(other.images, images.images)
    assert torch.equal(other.mean, images.mean)
    assert other.turns == 3
    assert torch.equal(torch.rand(3, generator=other.draws), torch.rand(3, generator=images.draws))


def test_a_record_moves_what_a_step_releases_by_the_clip_norm_at_most() -> None:
    """Noise of a millionth, all records in the batch: two adjacent sets differ by the clipped gradient of one."""
    private, _ = private_pair()
    seen: list[torch.Tensor] = []

    class Keep(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            found = [parameter.grad.flatten() for group in self.param_groups for parameter in group["params"]]
            seen.append(240 * torch.cat(found))

    run = DPSGDRun(lambda weights: Keep(weights, lr=0.0), functional.cross_entropy, 1e-6, Flat(0.1), 240, 1, 240)
    for rows in (slice(None), slice(1, None)):
        torch.manual_seed(0)
        net = build("convnet", 10, 1, 28, width=4)
        ledger = seeded_ledger(PSG.unit, PSG.adjacency, np.random.default_rng(0))
        ledger.dp_sgd(net, private.images[rows], private.labels[rows], run)
    assert 0.05 < float((seen[0] - seen[1]).norm()) <= 0.1 * (1 + 1e-3)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"runs": 0}, "runs must be at least 1"),
        ({"per_class": 0}, "per_class must be at least 1"),
        ({"image_lr": 0.0}, "image_lr must be positive"),
        ({"image_average": 1.0}, "image_average must be at least 0 and below 1"),
    ],
)
def test_wrong_settings_get_a_clear_error(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BenchError, match=says):
        configured("psg", changes)


def test_in_audits_the_images_follow_the_same_gradients_on_both_sets() -> None:
    (pair,) = worst_pairs(PSG, tiny(), MNIST, 1e-5)
    found = transcript(Runs(PSG, pair), False, 0.0, 1e-5)
    assert (found.calls, found.difference) == (1, "")
