"""DP-SGD on the largest entries of each gradient: which it keeps, how far they move the sum, where it adds noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from bench.privacy.dpsgd.clipping import FILLED, Adaptive, Clipping, Flat, PerLayer, TopK
from bench.privacy.dpsgd.dp_sgd import PROBED, DPSGDRun, train
from bench.privacy.dpsgd.gradient_forms import Outer, keep_largest, norms, picked

CLIP = 0.5


def net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(27, 5), nn.Tanh(), nn.Linear(5, 3))


def moved(images: torch.Tensor, kept: float, noise: float = 1e-12) -> torch.Tensor:
    """Return the noisy sum of one step on all of `images`."""
    model = net()
    before = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    run = DPSGDRun(
        lambda p: torch.optim.SGD(p, lr=1.0), cross_entropy, noise, TopK(CLIP, kept), len(images), 1, len(images)
    )
    train(model, images, torch.zeros(len(images), dtype=torch.long), run, randomness=np.random.default_rng(0))
    after = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return (before - after) * len(images)


def gradient(image: torch.Tensor) -> torch.Tensor:
    model = net()
    cross_entropy(model(image[None]), torch.zeros(1, dtype=torch.long)).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("kept", [0.1, 0.5])
def test_the_largest_entries_of_each_gradient_stay_and_are_clipped(kept: float) -> None:
    images = torch.rand(40, 1, 4, 4)
    wanted = torch.zeros_like(gradient(images[0]))
    for image in images:
        alone = gradient(image)
        largest = alone.abs().argsort(descending=True)[: math.ceil(kept * len(alone))]
        only = torch.zeros_like(alone)
        only[largest] = alone[largest]
        assert float(only.norm()) > CLIP, "the clip acts"
        wanted += only * CLIP / only.norm()
    torch.testing.assert_close(moved(images, kept), wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("clipping", [TopK(CLIP, 0.3), Adaptive(CLIP, 0.5, 0.2, 20.0)])
@pytest.mark.parametrize("records", [1, 3, 64, 70])
def test_what_is_decided_of_a_record_does_not_depend_on_the_size_of_its_batch(records: int, clipping: Clipping) -> None:
    """Another kernel's rounding would change near-ties among entries, so all private passes have one shape."""
    images, sizes = torch.rand(records, 1, 4, 4), []
    sums = []
    for _ in range(2):
        model = net()
        model.register_forward_hook(lambda module, given, result: sizes.append(len(given[0])))
        run = DPSGDRun(lambda p: torch.optim.SGD(p, lr=1.0), cross_entropy, 1e-12, clipping, records, 1, records)
        train(model, images, torch.zeros(len(images), dtype=torch.long), run, randomness=np.random.default_rng(0))
        sums.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
        images = images.flip(0)
    assert set(sizes) - {1, PROBED} == {FILLED}
    torch.testing.assert_close(sums[0], sums[1])


@pytest.mark.parametrize("layer", ["formed", "permuted", "rank one", "sequences"])
def test_a_norm_does_not_depend_on_how_many_examples_of_a_pass_are_left(layer: str) -> None:
    """A norm decides whether an example counts as clipped; the last pass holds fewer examples than were computed."""
    drawn = torch.randn(FILLED, 70, 90)
    whole = {
        "formed": drawn,
        "permuted": drawn.permute(0, 2, 1),
        "rank one": Outer(drawn[:, :, 0], drawn[:, 0]),
        "sequences": Outer(drawn[:, :5], drawn[:, 5:10]),
    }[layer]
    for count in (1, 2, 3, 7, 33):
        part = Outer(whole.left[:count], whole.right[:count]) if isinstance(whole, Outer) else whole[:count]
        assert torch.equal(norms(part), norms(whole)[:count])


def test_with_all_entries_it_is_dp_sgd_to_the_byte() -> None:
    images = torch.rand(5, 1, 4, 4)
    model, same = net(), net()
    for trained, clipping in ((model, Flat(CLIP)), (same, TopK(CLIP, 1.0))):
        run = DPSGDRun(lambda p: torch.optim.SGD(p, lr=1.0), cross_entropy, 1.0, clipping, 3, 4, 5)
        train(trained, images, torch.zeros(5, dtype=torch.long), run, randomness=np.random.default_rng(0))
    assert all(map(torch.equal, model.parameters(), same.parameters()))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-4, 1.0, 1e6]), st.floats(0.01, 0.99), st.booleans())
def test_one_record_moves_the_sum_by_the_clipping_norm_at_most(
    seed: int, size: float, kept: float, by_layer: bool
) -> None:
    """Holds for all other records, including ties, and whichever entries they keep."""
    generator = torch.Generator().manual_seed(seed)
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in ((3, 1, 2, 2), (4, 6), (5,))]
    clipping = PerLayer(CLIP) if by_layer else TopK(CLIP, kept)
    clipping.begin(["0.weight", "1.weight", "1.bias"], parameters, 1.0, 1)
    drawn = [torch.randn(4, *parameter.shape, generator=generator) * size for parameter in parameters]
    drawn[2] = drawn[2].round()

    def summed(rows: slice) -> torch.Tensor:
        outer = Outer(drawn[1][rows, :, 0], drawn[1][rows, 0])
        parts = clipping.summed([drawn[0][rows].clone(), outer, drawn[2][rows].clone()])
        return torch.cat([part.flatten() for part in parts]).double()

    assert float((summed(slice(0, 4)) - summed(slice(1, 4))).norm()) <= CLIP * (1 + 1e-5)


def test_noise_goes_on_the_entries_that_no_record_kept_too() -> None:
    """Noise on the kept entries alone would reveal them. Half the noise fails: with 60 entries the error is 9%."""
    images = torch.rand(2, 1, 4, 4)
    unkept = moved(images, 0.05) == 0
    assert int(unkept.sum()) > 60
    noisy = moved(images, 0.05, noise=2.0)[unkept]
    assert float(noisy.std()) == pytest.approx(2.0 * CLIP, rel=0.3)
    assert not (noisy == 0).any()


def test_a_gradient_that_is_not_finite_stays_so() -> None:
    first, second = torch.rand(3, 4), torch.rand(3, 2)
    first[0, 1], second[1, 0] = math.nan, math.inf
    rows = torch.cat(keep_largest([first, second], 2), 1)
    assert rows.isfinite().all(1).tolist() == [False, False, True]
    assert int((rows[2] != 0).sum()) == 2


def test_entries_are_the_largest_of_all_parameters() -> None:
    outer = Outer(torch.tensor([[1.0, -3.0]] * 20), torch.tensor([[2.0, 1.0]] * 20))
    bias = torch.tensor([[2.5, 0.1]] * 20)
    weights, biases = keep_largest([outer, bias], 3)
    assert picked(weights, [19]).tolist() == [[[0.0, 0.0], [-6.0, -3.0]]]
    assert biases[19].tolist() == [2.5, 0.0]
