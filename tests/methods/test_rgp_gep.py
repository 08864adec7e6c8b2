"""RGP and GEP: noise-free equalities, what they charge and claim, and that they train as they say."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from bench.core.config import Preset, build_config
from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Basis, Budget, Facts
from bench.interface.registry import METHODS
from bench.methods.dpsgd.low_rank import LowRank, RebuildingSGD, insert, remove
from bench.privacy.accounting.accountants import proven
from bench.privacy.accounting.claims import moments_accountant
from bench.privacy.dpsgd.clipping import Flat
from bench.privacy.dpsgd.dp_sgd import DPSGDRun, train
from bench.privacy.events.events import DPSGD
from bench.privacy.mechanisms.ledger import Ledger
from bench.storage.cache import Cache
from bench.training.context import Context
from helpers.ledgers import seeded_ledger
from helpers.small_sets import SMALL, private_pair, public_set

CIFAR = Facts("cifar10", 50_000, 5_000, 5_000, 10, (3, 32, 32), public_benchmark=True)


def run(name: str, **change: Any) -> tuple[dict[str, torch.Tensor], Ledger]:
    """Run the tiny preset of `name` with `change`; return the student's weights and the ledger."""
    method = METHODS.get(name)
    config = dataclasses.replace(build_config(method, Preset.TINY, SMALL)[0], **change)
    ledger = seeded_ledger(method.unit, method.adjacency, np.random.default_rng(0))
    context = Context(torch.device("cpu"), Streams(0), Cache(None, {}), Progress())
    released = method(config, private_pair()[0].facts).train_student(private_pair()[0], public_set(), ledger, context)
    return released.student.state_dict(), ledger


# ----------------------------------------------------------------------------------------------------------------- rgp

LAYERS = {
    "linear": (lambda: nn.Linear(12, 6), (5, 12)),
    "wide": (lambda: nn.Linear(6, 12), (5, 6)),
    "sequence": (lambda: nn.Linear(12, 6, bias=False), (5, 3, 12)),
    "convolution": (lambda: nn.Conv2d(2, 6, 3, stride=2, padding=1), (5, 2, 7, 7)),
}


def pair(layer: str, rank: int, *, left_only: bool = False) -> tuple[nn.Module, LowRank, torch.Tensor]:
    """Return a layer, a :class:`LowRank` of its copy with the loss of both passed back, and the layer's input."""
    torch.manual_seed(0)
    make, shape = LAYERS[layer]
    plain = make()
    low = LowRank(copy.deepcopy(plain), rank, left_only=left_only)
    low.decompose(torch.Generator().manual_seed(1), history=True)
    inputs = torch.randn(shape, requires_grad=True)
    for net in (plain, low):
        net(inputs).square().sum().backward()
    return plain, low, inputs


@pytest.mark.parametrize("layer", LAYERS)
def test_the_outputs_and_what_flows_back_are_those_of_the_layer(layer: str) -> None:
    plain, low, inputs = pair(layer, 2)
    torch.testing.assert_close(low(inputs), plain(inputs))
    (wanted,) = torch.autograd.grad(plain(inputs).square().sum(), inputs)
    (found,) = torch.autograd.grad(low(inputs).square().sum(), inputs)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("left_only", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
def test_the_rebuilt_gradient_is_the_projected_one(layer: str, left_only: bool) -> None:
    plain, low, _ = pair(layer, 2, left_only=left_only)
    gradient = plain.weight.grad.flatten(1)
    left, right = low.left.weight.flatten(1), low.right.weight.flatten(1)
    torch.testing.assert_close(left.T @ left, torch.eye(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(right @ right.T, torch.eye(2), atol=1e-5, rtol=0)
    wanted = gradient @ right.T @ right
    if not left_only:
        wanted = wanted + left @ left.T @ (gradient - wanted)
    torch.testing.assert_close(low.rebuilt().flatten(1), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layer", LAYERS)
def test_with_full_rank_the_rebuilt_gradient_is_the_plain_one(layer: str) -> None:
    plain, low, _ = pair(layer, 6)
    torch.testing.assert_close(low.rebuilt(), plain.weight.grad, rtol=1e-4, atol=1e-4)


def test_carriers_follow_what_weights_have_changed() -> None:
    layer = nn.Linear(9, 7)
    low = LowRank(layer, 2, left_only=False)
    change = torch.randn(7, 2) @ torch.randn(2, 9)
    with torch.no_grad():
        low.start.copy_(low.weight)
        low.weight.copy_(low.weight + 0.1 * change)
        # With equal norms the difference is that of the change alone.
        low.weight *= low.start.norm() / low.weight.norm()
        low.start.copy_(low.weight - 0.1 * change)
        low.start *= low.weight.norm() / low.start.norm()
    low.decompose(torch.Generator().manual_seed(0), history=True)
    changed = (low.weight / low.weight.norm() - low.start / low.start.norm()).detach()
    left = low.left.weight.detach()
    share = (left.T @ changed).norm() / changed.norm()
    low.decompose(torch.Generator().manual_seed(0), history=False)
    other = low.left.weight.detach()
    assert share > (other.T @ changed).norm() / changed.norm()


def sums(inserted: bool, **settings: Any) -> torch.Tensor:
    """Return the weights after two noiseless steps on all of six records, whose gradients nothing clips."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, 3))
    found = insert(net, settings.pop("rank", 4), net[3], left_only=False) if inserted else {}
    layers = [low for _, low in found.values()]

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        if inserted:
            return RebuildingSGD(parameters, layers, seed=0, warmup=0.0, lr=0.1, momentum=0.9, weight_decay=0.01)
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)

    plan = DPSGDRun(optimizer, cross_entropy, 1e-12, Flat(1e6), 6, 2, 6)
    images = torch.rand(6, 1, 3, 3, generator=torch.Generator().manual_seed(1))
    train(net, images, torch.arange(6) % 3, plan, randomness=np.random.default_rng(0))
    remove(net, found)
    assert all(parameter.requires_grad for parameter in net.parameters())
    return nn.utils.parameters_to_vector(net.parameters()).detach()


def test_steps_of_nearly_full_rank_are_those_of_sgd() -> None:
    """Of five rows, four are in L and the rest in R: what is lost lies outside both."""
    plain, low, little = sums(False), sums(True, rank=4), sums(True, rank=1)
    assert float((low - plain).norm()) < float((little - plain).norm())
    torch.testing.assert_close(low[-23:], plain[-23:], rtol=0.05, atol=1e-3)


@settings(max_examples=30, deadline=None)
@given(size=st.floats(-3, 15), rank=st.integers(1, 4), left_only=st.booleans(), seed=st.integers(0, 10**6))
def test_a_record_moves_the_carriers_by_the_clipping_norm_at_most(
    size: float, rank: int, left_only: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    images = torch.rand(4, 1, 3, 3)
    images[0] *= 10.0**size
    seen: list[torch.Tensor] = []

    class Watching(RebuildingSGD):
        def step(self, closure: Any = None) -> None:
            seen.append(torch.cat([p.grad.flatten() for group in self.param_groups for p in group["params"]]) * 4)
            super().step(closure)

    for given_images in (images, images[1:]):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Flatten(), nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, 3))
        layers = [low for _, low in insert(net, rank, net[3], left_only=left_only).values()]
        plan = DPSGDRun(
            lambda p, layers=layers: Watching(p, layers, seed=0, warmup=0.0, lr=0.1), cross_entropy, 1e-12, Flat(0.3),
            4, 1, 4,
        )  # fmt: skip
        labels = torch.zeros(len(given_images), dtype=torch.long)
        train(net, given_images, labels, plan, randomness=np.random.default_rng(0))
    assert float((seen[0] - seen[1]).norm()) <= 0.3 * 1.001


def test_rgp_takes_the_steps_that_it_charges_for_and_releases_the_plain_net() -> None:
    weights, ledger = run("rgp")
    plain, _ = run("dp-sgd")
    method = METHODS.get("rgp")
    assert list(ledger.events) == list(method(build_config(method, Preset.TINY, SMALL)[0], SMALL).charges())
    assert {name: value.shape for name, value in weights.items()} == {k: v.shape for k, v in plain.items()}


def test_a_layer_of_rgp_changes_by_the_rank_of_its_steps_alone() -> None:
    start, _ = run("rgp", lr=1e-30)
    moved, _ = run("rgp", rank=2, weight_decay=0.0, epochs=0.25)  # two steps, each of rank 4 at most
    change = moved["body.8.weight"] - start["body.8.weight"]
    assert change.norm() > 0
    assert int(torch.linalg.matrix_rank(change, rtol=1e-3)) <= 8 < min(change.shape)


def test_rgp_resumes_where_it_was(tmp_path: Any) -> None:
    """The optimiser's state is all that changes in it: the same steps follow from a copy of it."""
    torch.manual_seed(0)
    nets = []
    for _ in range(2):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, 3))
        layers = [low for _, low in insert(net, 2, net[2], left_only=False).values()]
        nets.append((net, RebuildingSGD(net.parameters(), layers, seed=3, warmup=1.0, lr=0.1, momentum=0.9)))

    def step(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        net.zero_grad()
        net(torch.ones(2, 9)).square().sum().backward()
        optimizer.step()

    (first, one), (second, two) = nets
    step(first, one)
    step(first, one)
    second.load_state_dict(first.state_dict())
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    step(first, one)
    step(second, two)
    assert all(map(torch.equal, first.state_dict().values(), second.state_dict().values()))


# ----------------------------------------------------------------------------------------------------------------- gep


def test_gep_is_charged_as_one_gaussian_of_both_parts_which_the_paper_takes_apart() -> None:
    """Of two releases on one batch, the squared ratios of sensitivity to noise add up."""
    method = METHODS.get("gep")
    config = build_config(method, Preset.TINY, SMALL)[0]
    (joint,), (apart,) = method(config, SMALL).charges(), method(config, SMALL).claimed_charges()
    assert joint.noise_multiplier == pytest.approx((2 / apart.noise_multiplier**2) ** -0.5)
    assert (apart.steps, apart.sampling_rate) == (2 * joint.steps, joint.sampling_rate)


def test_what_gep_claims_is_less_than_one_release_of_both_parts_costs_by_the_same_accounting() -> None:
    """The authors' run on CIFAR-10, 200 epochs of 50 batches: a claim of 8 is 8.65, and by a tight accountant 7.31."""
    method = METHODS.get("gep")
    config = method(method.Config(), CIFAR).calibrate(Budget(8.0, 1e-5, Basis.CLAIMED))
    claim, joint = method(config, CIFAR).claimed(1e-5), list(method(config, CIFAR).charges())
    assert claim.epsilon == pytest.approx(8.0, rel=1e-3)
    assert moments_accountant(joint, 1e-5).epsilon == pytest.approx(8.65, abs=0.01)
    assert proven(joint, 1e-5).epsilon == pytest.approx(7.31, abs=0.02)


def test_the_claim_of_gep_is_below_the_proven_figure_where_batches_hold_much_of_the_records() -> None:
    method = METHODS.get("gep")
    config = dataclasses.replace(build_config(method, Preset.TINY, SMALL)[0], noise_multiplier=1.0)
    proved = proven(list(method(config, SMALL).charges()), 1e-5).epsilon
    assert method(config, SMALL).claimed(1e-5).epsilon < 0.95 * proved


def test_gep_takes_the_steps_that_it_charges_for() -> None:
    _, ledger = run("gep")
    method = METHODS.get("gep")
    config = build_config(method, Preset.TINY, SMALL)[0]
    assert list(ledger.events) == list(method(config, SMALL).charges())
    assert list(ledger.events) == [DPSGD(config.batch_size / 240, config.noise_multiplier, config.steps(240))]


def test_gep_with_bounds_that_clip_nothing_is_sgd_whatever_its_anchors() -> None:
    whole = {"batch_size": 240, "epochs": 3.0, "noise_multiplier": 1e-9, "lr": 0.05, "momentum": 0.5}
    plain, _ = run("dp-sgd", **whole, max_grad_norm=1e3)
    for directions in (3, 30):
        found, _ = run("gep", **whole, max_grad_norm=1e3, residual_norm=1e3, directions=directions, weight_decay=0.0)
        for name, weights in plain.items():
            torch.testing.assert_close(found[name], weights, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("rgp", {"rank": 0}, "rank must be at least 1"),
        ("rgp", {"batch_size": 60_001}, "private records"),
        ("gep", {"residual_norm": 0.0}, "residual_norm must be positive"),
        ("gep", {"directions": 2}, "3 groups need as many directions, not 2"),
        ("gep", {"anchors": 0}, "anchors must be at least 1"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(name: str, change: dict[str, Any], words: str) -> None:
    method = METHODS.get(name)
    with pytest.raises(BenchError, match=words):
        method(build_config(method, Preset.PAPER, CIFAR, change)[0], CIFAR).calibrate(Budget(1.0, 1e-5))


def test_gep_needs_public_images_and_takes_all_there_are_at_most() -> None:
    method = METHODS.get("gep")
    with pytest.raises(BenchError, match=r"rgp, which takes none"):
        method(method.Config(), dataclasses.replace(CIFAR, public_records=0)).calibrate(Budget(1.0, 1e-5))
    few = dataclasses.replace(CIFAR, public_records=70)
    assert method(method.Config(epochs=1.0), few).calibrate(Budget(1.0, 1e-5)).anchors == 70


def test_layers_of_no_larger_rank_are_trained_as_they_are() -> None:
    plain, _ = run("dp-sgd", max_grad_norm=0.3, lr=0.1)
    whole, _ = run("rgp", max_grad_norm=0.3, lr=0.1, rank=32, weight_decay=0.0, noise_multiplier=1.23)
    for name, weights in plain.items():
        torch.testing.assert_close(whole[name], weights)
