"""GANs: DP-SGD on a discriminator, and discriminators on disjoint parts that guide a generator through the ledger."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Basis, Budget, Facts, PrivateData
from bench.evaluation.audit.pair_runs import Runs, transcript
from bench.evaluation.audit.pairs import worst_pairs
from bench.interface.method import Method
from bench.methods.generative.datalens import DataLens, DataLensConfig, summed_signs
from bench.methods.generative.dp_gan import DPGAN, DPGANConfig, Game, discriminator
from bench.methods.generative.g_pate import GPATE, GPATEConfig, counted
from bench.methods.generative.gan_parts import AdamAgainst, Forger
from bench.methods.generative.gs_wgan import GSWGAN, GSWGANConfig, clipped_rows, one_of_all
from bench.methods.generative.guided import critics_of
from bench.methods.generative.pate_gan import PATEGAN, PATEGANConfig
from bench.models.discriminators import ConvDiscriminator, DenseDiscriminator
from bench.privacy.accounting.accountants import accountant, proven
from bench.privacy.dpsgd.example_gradients import ExampleGradients
from bench.privacy.dpsgd.gradient_forms import Outer, norms
from bench.storage.cache import Cache
from bench.training.context import Context
from helpers.ledgers import seeded_ledger
from helpers.settings import configured
from helpers.small_sets import SMALL, private_pair

MNIST = Facts("mnist", 60_000, 9_000, 1_000, 10, (1, 28, 28))
FEW = {"teachers": 6, "critic_units": 3, "critic_batch": 5, "generator_units": 8, "generator_maps": 2, "latent": 2}


def context() -> Context:
    return Context(torch.device("cpu"), Streams(0), Cache(None, {}), Progress(), note=lambda text: None)


def budget(epsilon: float, basis: Basis = Basis.PROVEN) -> Budget:
    return Budget(epsilon, 1e-5, basis)


# -------------------------------------------------------------------------------------------------------------- dp-gan


def tiny_gan(**changes: Any) -> DPGANConfig:
    return DPGANConfig(**{**DPGAN.presets(SMALL)["tiny"], **changes})


def test_dp_gans_settings_cost_what_their_authors_say() -> None:
    """The repository's own setting for MNIST at epsilon 10, by Renyi accounting."""
    assert DPGAN(DPGANConfig(), MNIST).claimed(1e-5).epsilon == pytest.approx(9.97, abs=0.01)


def test_clamped_weights_do_not_bound_gradients_as_the_first_dp_gan_claims() -> None:
    """Noise of deviation sigma over the batch hides a gradient of norm 1; a clamped critic has larger ones."""
    torch.manual_seed(0)
    critic = ConvDiscriminator(1, 28, 28, 10, maps=16)
    game = Game(critic, None, tiny_gan(loss="wasserstein", clamp=0.01))  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter.copy_(0.01 * torch.ones_like(parameter))  # as far as clamping lets them go
    gradients = ExampleGradients(critic)
    gradients.backward(game.real_loss(critic(torch.ones(1, 1, 28, 28)), torch.tensor([0])), 1)
    samples = [parameter.grad_sample for parameter in critic.parameters()]
    length = torch.stack([norms(sample) for sample in samples], 1).norm(dim=1)
    assert float(length[0]) > 2


def played(config: DPGANConfig, steps: int) -> tuple[torch.nn.Module, Forger, Game]:
    """Return discriminator, generator and game after steps on gradients of zero for the real side."""
    forger = Forger(config, SMALL, context())
    torch.manual_seed(0)
    critic = discriminator(config, SMALL)
    game = Game(critic, forger, config)
    optimizer = AdamAgainst(critic.parameters(), 1e-3, config.adam_beta1, forger, game.before_step, game.after_step)
    for _ in range(steps):
        for parameter in critic.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    return critic, forger, game


def test_the_dense_discriminators_gradients_of_weights_are_never_formed() -> None:
    torch.manual_seed(0)
    critic = DenseDiscriminator(*SMALL.shape, SMALL.classes, units=7)
    game = Game(critic, None, tiny_gan(mismatch=0.5))  # type: ignore[arg-type]
    images, labels = torch.rand(5, *SMALL.shape), torch.arange(5) % SMALL.classes
    scores = critic(images)
    assert scores.shape == (5, SMALL.classes)
    gradients = ExampleGradients(critic)
    gradients.backward(game.private_loss(critic(images), labels), 5)
    samples = [parameter.grad_sample for parameter in critic.parameters() if parameter.dim() == 2]
    assert len(samples) == 3
    assert all(isinstance(sample, Outer) for sample in samples)


def test_losses_of_a_real_image_with_right_and_wrong_labels_are_one_loss_of_its_own() -> None:
    scores, labels = torch.randn(4, 10, generator=torch.Generator().manual_seed(0)), torch.tensor([3, 0, 9, 3])
    game = Game(torch.nn.Linear(1, 1), None, tiny_gan(mismatch=0.5))  # type: ignore[arg-type]
    whole = game.private_loss(scores, labels)
    alone = [game.private_loss(scores[row : row + 1], labels[row : row + 1]) for row in range(4)]
    assert float(whole) == pytest.approx(float(torch.stack(alone).mean()))
    softplus = torch.nn.functional.softplus
    wrong = sum(float(softplus(scores[1, label])) for label in range(1, 10))
    assert float(alone[1]) == pytest.approx(float(softplus(-scores[1, 0])) + 0.5 * wrong)
    without = Game(torch.nn.Linear(1, 1), None, tiny_gan(mismatch=0.0))  # type: ignore[arg-type]
    assert torch.equal(without.private_loss(scores, labels), without.real_loss(scores, labels))


def test_the_released_generator_is_the_mean_of_its_steps_or_the_last_one() -> None:
    name = "project.0.weight"
    _, last, _ = played(tiny_gan(steps_per_generator_step=1, generator_average=0.0), 3)
    assert torch.equal(last.mean.state_dict()[name], last.net.state_dict()[name])
    steps = [
        played(tiny_gan(steps_per_generator_step=1, generator_average=0.9), count)[1].net.state_dict()[name]
        for count in (1, 2, 3)
    ]
    _, forger, _ = played(tiny_gan(steps_per_generator_step=1, generator_average=0.9), 3)
    torch.testing.assert_close(forger.mean.state_dict()[name], torch.stack(steps).mean(0))
    _, forger, _ = played(tiny_gan(steps_per_generator_step=1, generator_average=0.5), 3)
    torch.testing.assert_close(forger.mean.state_dict()[name], (steps[0] + steps[1]) / 4 + steps[2] / 2)


@pytest.mark.parametrize("units", [None, 16])
def test_generated_images_weigh_as_much_as_real_ones_and_the_generator_moves_in_its_turn(units: int | None) -> None:
    config = tiny_gan(
        max_grad_norm=1e-3, steps_per_generator_step=2, clamp=0.02, generated=3, discriminator_units=units,
        discriminator_maps=4,
    )  # fmt: skip
    before = Forger(config, SMALL, context()).net.state_dict()["project.0.weight"]
    critic, forger, _ = played(config, 1)
    whole = torch.cat([parameter.grad.flatten() for parameter in critic.parameters()])  # type: ignore[union-attr]
    # A batch of gradients of norm 1e-3 each, over the batch.
    assert 0 < float(whole.norm()) <= 1e-3 * (1 + 1e-5)
    assert max(float(parameter.detach().abs().max()) for parameter in critic.parameters()) <= 0.02 + 1e-9
    assert torch.equal(forger.net.state_dict()["project.0.weight"], before)
    _, forger, _ = played(config, 2)
    assert not torch.equal(forger.net.state_dict()["project.0.weight"], before)


def test_a_checkpoint_of_the_discriminator_holds_the_generator() -> None:
    config = tiny_gan()
    _, forger, game = played(config, 3)
    optimizer = AdamAgainst(game.critic.parameters(), 1e-3, config.adam_beta1, forger, lambda: None, lambda: None)
    other = Forger(config, SMALL, context())
    fresh = AdamAgainst(game.critic.parameters(), 1e-3, config.adam_beta1, other, lambda: None, lambda: None)
    fresh.load_state_dict(optimizer.state_dict())
    assert (other.turns, other.steps) == (3, forger.steps)
    assert torch.equal(other.mean.state_dict()["project.0.weight"], forger.mean.state_dict()["project.0.weight"])
    assert torch.equal(other.images(4)[0], forger.images(4)[0])


# ------------------------------------------------------------------------------------------ discriminators of the parts


def test_a_record_changes_one_discriminator_only() -> None:
    config = PATEGANConfig(**FEW)
    private, _ = private_pair()
    images = private.images.clone()
    images[7] = 255 - images[7]
    forger = Forger(config, SMALL, context())
    asked, labels = forger.images(4)
    found = []
    for given in (private.images, images):
        (critics,) = critics_of(config, PrivateData(given, private.labels, SMALL), context())
        for loss in ("binary", "wasserstein"):
            critics.learn(Forger(config, SMALL, context()), 6, loss)  # type: ignore[arg-type]
        found.append(critics.directions(asked, labels))
    moved = (found[0] != found[1]).flatten(1).any(1)
    assert int(moved.sum()) == 1


def test_groups_of_critics_hold_every_part_once() -> None:
    config = GSWGANConfig(**FEW, groups=4)
    groups = critics_of(config, private_pair()[0], context(), config.groups)
    rows = torch.cat([group.rows for group in groups]).flatten()
    assert [len(group) for group in groups] == [2, 2, 1, 1]
    assert torch.equal(rows.sort().values, torch.arange(240))


def test_critics_tell_real_images_from_generated_ones() -> None:
    config = PATEGANConfig(**{**FEW, "critic_lr": 0.01})
    (critics,) = critics_of(config, private_pair()[0], context())
    forger = Forger(config, SMALL, context())
    critics.learn(forger, 60)
    images, labels = critics.real()
    assert float((critics.scores(images, labels) > 0).float().mean()) > 0.9
    assert float(critics.votes(*forger.images(20)).float().mean()) < 0.1


# ------------------------------------------------------------------------------------------------------------- pate-gan


@pytest.mark.parametrize(
    ("epsilon", "noise", "queries"),
    [(1.0, 40.0, 114), (10.0, 40.0, 6402), (1.0, 100.0, 718), (10.0, 100.0, 40_017), (10.0, 200.0, 160_071)],
)
def test_gaussian_votes_answer_so_many_queries(epsilon: float, noise: float, queries: int) -> None:
    config = PATEGAN(PATEGANConfig(noise_scale=noise), MNIST).calibrate(budget(epsilon))
    assert config.votes == "gaussian"
    assert config.queries == pytest.approx(queries, abs=1)
    assert proven(PATEGAN(config, MNIST).charges(), 1e-5).epsilon <= epsilon


@pytest.mark.parametrize("basis", [Basis.CLAIMED, Basis.PROVEN])
def test_noise_is_raised_for_the_least_number_of_queries(basis: Basis) -> None:
    config = PATEGAN(PATEGANConfig(noise_scale=1.0, least_queries=500), MNIST).calibrate(budget(1.0, basis))
    assert config.queries == 500
    assert proven(PATEGAN(config, MNIST).charges(), 1e-5).epsilon <= 1
    several = GPATE(GPATEConfig(teachers=4, least_steps=7), MNIST).calibrate(budget(1.0, basis))
    assert several.steps == 7
    assert several.sigma1 == pytest.approx(3 * several.sigma2)
    assert 0.7 < proven(GPATE(several, MNIST).charges(), 1e-5).epsilon <= 1


def test_the_paper_takes_laplace_votes_and_its_figure_on_the_votes_is_lower() -> None:
    config = PATEGAN(PATEGANConfig(noise_scale=20.0), MNIST).calibrate(budget(10.0, Basis.CLAIMED))
    assert config.votes == "laplace"
    ledger = seeded_ledger(PATEGAN.unit, PATEGAN.adjacency, np.random.default_rng(0))
    for _ in range(2):  # in agreement, as where all images are obviously generated
        votes = np.tile([1000, 0], (config.queries // 2, 1))
        ledger.noisy_max(votes, teachers=1000, gamma=1 / config.noise_scale)
    on_votes = PATEGAN(config, MNIST).claimed_after(1e-5, ledger)
    assert on_votes.epsilon < 0.1 * PATEGAN(config, MNIST).claimed(1e-5).epsilon
    assert "private" in on_votes.note


# --------------------------------------------------------------------------------------------------------------- g-pate


@pytest.mark.parametrize(
    ("epsilon", "sigmas", "votes"), [(1.0, (3000.0, 1000.0), 34_034), (10.0, (600.0, 100.0), 19_734)]
)
def test_g_pates_noise_pays_for_so_many_votes(epsilon: float, sigmas: tuple[float, float], votes: int) -> None:
    config = GPATEConfig(sigma1=sigmas[0], sigma2=sigmas[1], batch=1, directions=1)
    assert GPATE(config, MNIST).calibrate(budget(epsilon)).steps == pytest.approx(votes, abs=2)


def test_g_pates_noise_follows_the_budget_in_proportion_to_the_teachers() -> None:
    config = GPATE(GPATEConfig(), MNIST).calibrate(budget(10.0))
    assert (config.sigma1, config.sigma2) == (600, 100)
    assert config.steps == 65, "66 steps take 66 votes more than are paid for"
    config = GPATE(GPATEConfig(teachers=4000, batch=15), MNIST).calibrate(budget(1.0))
    assert (config.sigma1, config.sigma2) == (3000, 1000)
    assert config.steps == 226
    few = GPATE(GPATEConfig(teachers=4), MNIST).calibrate(budget(1.0))
    assert few.steps == 1
    assert proven(GPATE(few, MNIST).charges(), 1e-5).epsilon <= 1


def test_each_teacher_of_g_pate_has_one_vote_on_every_coordinate() -> None:
    config = GPATEConfig(directions=3)
    gradients = torch.randn(7, 2, 16, generator=torch.Generator().manual_seed(0))
    gradients[0] = math.nan
    gradients[1] = 0
    basis = torch.randn(16, 3, generator=torch.Generator().manual_seed(1))
    votes = counted(gradients, basis, config)
    assert votes.shape == (6, 10)
    assert votes.sum(1).tolist() == [7] * 6
    expected = ((gradients[3, 1] / gradients[3, 1].norm()) @ basis / config.bound).clamp(-1, 1)
    alone = counted(gradients[3:4, 1:2], basis, config).argmax(1)
    assert alone.tolist() == [min(9, int((one + 1) * 5)) for one in expected.tolist()]


# ------------------------------------------------------------------------------------------------------------- datalens


@pytest.mark.parametrize(("epsilon", "kept", "steps", "sigma"), [(1.0, 200, 150, 5000.0), (10.0, 300, 142, 800.0)])
def test_datalens_noise_pays_for_so_many_steps(epsilon: float, kept: int, steps: int, sigma: float) -> None:
    config = DataLens(DataLensConfig(steps=steps), MNIST).calibrate(budget(epsilon))
    assert config.kept == kept
    assert config.sigma == pytest.approx(sigma, rel=0.002)


def test_a_teacher_moves_sums_of_signs_by_at_most_their_sensitivity() -> None:
    config = DataLensConfig(kept=5, batch=3)
    one = torch.zeros(4, 3, 16)
    one[:, :, :5] = 1.0
    other = one.clone()
    other[0] = -other[0]
    sums = [summed_signs(given, 5, 1e-5, torch.Generator().manual_seed(0)) for given in (one, other)]
    assert float((sums[0] - sums[1]).norm()) == pytest.approx(config.sensitivity)
    other[0] = math.nan
    odd = summed_signs(other, 5, 1e-5, torch.Generator().manual_seed(0))
    assert float((sums[0] - odd).norm()) <= config.sensitivity
    assert float(odd.abs().sum(1).max()) <= 4 * 5


# -------------------------------------------------------------------------------------------------------------- gs-wgan


def test_gs_wgans_claim_is_the_figure_of_each_image_amplified_by_itself() -> None:
    """The paper prints 10 for this setting; its code uses the classic conversion."""
    assert GSWGAN(GSWGANConfig(), MNIST).claimed(1e-5).epsilon == pytest.approx(9.993, abs=0.001)


def test_gs_wgans_claim_follows_the_rate_however_small() -> None:
    found = [one_of_all(0.05, rate, 1000, 1e-5)[0] for rate in (4e-7, 1e-6, 1.4e-6)]
    assert 0 < found[0] < found[1] < found[2]


@pytest.mark.parametrize(("noise", "epsilon"), [(2.913, 10.0), (8.815, 1.0)])
def test_gs_wgans_noise_with_one_release_of_a_step(noise: float, epsilon: float) -> None:
    """One critic out of 1000, the images of a step as one release; sampled by themselves, critics cost less."""
    config = GSWGANConfig(noise_multiplier=noise)
    assert one_of_all(noise / math.sqrt(32), 0.001, 20_000, 1e-5)[0] == pytest.approx(epsilon, rel=0.005)
    sampled = accountant("rdp")(GSWGAN(config, MNIST).charges(), 1e-5)
    assert sampled is not None
    assert sampled.epsilon < epsilon / 2


def test_gs_wgans_proven_cost_is_above_its_claim() -> None:
    cost = accountant("rdp")(GSWGAN(GSWGANConfig(), MNIST).charges(), 1e-5)
    assert cost is not None
    assert cost.epsilon > 25


def test_gs_wgans_gradients_are_bounded_image_by_image() -> None:
    gradients = 5 * torch.randn(3, 4, 16, generator=torch.Generator().manual_seed(0))
    gradients[1, 2, 3] = math.inf
    gradients[0, 0] *= 1e-3
    found = clipped_rows(gradients)
    assert float(found.norm(dim=2).max()) <= 1 + 1e-6
    assert torch.equal(found[1, 2], torch.zeros(16))
    assert torch.equal(found[0, 0], gradients[0, 0])


# -------------------------------------------------------------------------------------------------------------- common


@pytest.mark.parametrize("method", [PATEGAN, GPATE, DataLens, GSWGAN])
def test_more_teachers_than_records_are_refused(method: type[Method]) -> None:
    with pytest.raises(BenchError, match="more teachers than records"):
        method(method.Config(teachers=241), SMALL).calibrate(budget(10.0))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: configured("dp-gan", {"discriminator_steps": 0}), "discriminator_steps must be at least 1"),
        (lambda: configured("dp-gan", {"clamp": 0.0}), "clamp must be positive"),
        (lambda: configured("dp-gan", {"discriminator_units": 0}), "discriminator_units must be positive"),
        (lambda: configured("dp-gan", {"generated": 0}), "generated must be at least 2"),
        (lambda: configured("dp-gan", {"mismatch": -0.1}), "mismatch must be at least 0"),
        (lambda: configured("dp-gan", {"mismatch": math.inf}), "mismatch must be at least 0"),
        (lambda: configured("dp-gan", {"generator_average": 1.0}), "generator_average must be at least 0 and below 1"),
        (lambda: configured("pate-gan", {"noise_scale": 0.0}), "noise_scale must be positive"),
        (lambda: configured("gs-wgan", {"sampling_rate": 1.5}), "sampling_rate must be positive and at most 1"),
        (lambda: GPATEConfig().events(1), "the noise depends on the budget"),
        (lambda: DataLensConfig().sensitivity, "kept depends on the budget"),
    ],
)
def test_wrong_settings_get_a_clear_error(make: Any, says: str) -> None:
    with pytest.raises(BenchError, match=says):
        make()


@pytest.mark.slow
@pytest.mark.parametrize("method", [DPGAN, PATEGAN, GPATE, DataLens, GSWGAN])
def test_audits_find_worst_pairs_of_the_rows_cost_and_run_on_the_smallest(method: type[Method]) -> None:
    config = method(method.Config(**method.presets(MNIST)["tiny"]), MNIST).calibrate(budget(10.0, Basis.CLAIMED))
    pair = min(worst_pairs(method, config, MNIST, 1e-5), key=lambda pair: len(pair.first))
    found = transcript(Runs(method, pair), False, 0.0, 1e-5)
    assert found.calls > 0
    assert found.difference == ""
