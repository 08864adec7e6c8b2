"""Dropout under DP-SGD: where its masks come from."""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import kstest
from torch.nn.functional import cross_entropy

from bench.core.seeds import seeded_with
from bench.privacy.dpsgd.clipping import Flat
from bench.privacy.dpsgd.dp_sgd import DPSGDRun, train


def test_dropouts_masks_do_not_follow_from_torchs_seed() -> None:
    """The run's seed is public: with masks drawn from it, a record that leaves would exchange those of the others."""

    def weights(public: int, secret: int) -> torch.Tensor:
        torch.manual_seed(public)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(4, 2))
        with torch.no_grad():
            model[2].weight.fill_(0.1), model[2].bias.zero_()
        run = DPSGDRun(lambda some: torch.optim.SGD(some, lr=0.1), cross_entropy, 1e-9, Flat(1.0), 5, 3, 5)
        before = torch.random.get_rng_state()
        images = torch.ones(5, 1, 2, 2)
        train(model, images, torch.zeros(5, dtype=torch.long), run, randomness=np.random.default_rng(secret))
        assert torch.equal(torch.random.get_rng_state(), before)
        return model[2].weight.detach().clone()

    assert torch.equal(weights(0, 1), weights(5, 1))
    assert not torch.allclose(weights(0, 1), weights(0, 2), atol=1e-6)


def test_all_of_a_secret_seed_is_used() -> None:
    """Torch keeps 32 bits of a seed: an attacker could try them all, and know the masks of each step."""

    def drawn(seed: int) -> torch.Tensor:
        before = torch.random.get_rng_state()
        with seeded_with(seed, secret=True):
            found = torch.nn.functional.dropout(torch.ones(200), 0.5)
        assert torch.equal(torch.random.get_rng_state(), before)
        return found

    one = drawn(7)
    assert torch.equal(one, drawn(7))
    assert not any(torch.equal(one, drawn(7 + 2**bits)) for bits in (32, 40, 62, 63, 64, 100, 127))
    assert 60 < (one > 0).sum() < 140
    with seeded_with(3, secret=True):
        uniform = torch.rand(100_000)
    assert kstest(uniform.numpy(), "uniform").pvalue > 1e-4
