"""Methods of unit label: what they charge, what they learn from, and what they refuse."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from bench.core.config import Preset, build_config
from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Budget, Facts, PrivacyUnit, PrivateData, PublicKind, Released
from bench.evaluation.audit.pair_runs import Runs, transcript
from bench.evaluation.audit.pairs import worst_pairs
from bench.interface.registry import METHODS, method_groups
from bench.methods.label.alibi import laplace_law
from bench.methods.label.cluster_rr import drawn, principal
from bench.methods.label.family import negative_log_likelihood, response_law
from bench.methods.label.label_protocol import unit_rows
from bench.privacy.accounting.accountants import proven
from bench.privacy.mechanisms.ledger import Ledger
from bench.privacy.mechanisms.responses import keep_probability
from bench.storage.cache import Cache
from bench.training.context import Context
from helpers.ledgers import seeded_ledger
from helpers.settings import configured
from helpers.small_sets import SMALL, private_pair, public_set

NAMES = sorted(name for name in METHODS.names() if METHODS.get(name).unit is PrivacyUnit.LABEL)
MNIST = Facts("mnist", 60_000, 9_000, 1_000, 10, (1, 28, 28), public_benchmark=True)


def run(name: str, private: PrivateData | None = None, **change: Any) -> tuple[Released, Ledger]:
    """Run the tiny preset of `name` with `change`."""
    method = METHODS.get(name)
    private = private or private_pair()[0]
    config = dataclasses.replace(build_config(method, Preset.TINY, private.facts)[0], **change)
    ledger = seeded_ledger(method.unit, method.adjacency, np.random.default_rng(0))
    context = Context(torch.device("cpu"), Streams(0), Cache(None, {}), Progress())
    return method(config, private.facts).train_student(private, public_set(), ledger, context), ledger


def test_no_label_moves_the_class_sums_of_the_protocol_beyond_what_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of single records: normalised in float32, a third of these features are longer than 1."""
    given: list[np.ndarray] = []

    def spy(self: Ledger, values: np.ndarray, **options: Any) -> np.ndarray:
        given.append(values)
        assert options["sensitivity"] == math.sqrt(2)
        return values

    monkeypatch.setattr(Ledger, "gaussian", spy)
    images = torch.randint(0, 256, (12, 1, 8, 8), generator=torch.Generator().manual_seed(0)).byte()
    facts = dataclasses.replace(private_pair()[0].facts, private_records=1, shape=(1, 8, 8))
    for image in images:
        for label in (0, 1):
            run("label-protocol", PrivateData(image[None], torch.tensor([label]), facts))
    moved = [math.sqrt(math.fsum(((one - two) ** 2).flat)) for one, two in zip(given[::2], given[1::2], strict=True)]
    assert math.sqrt(2) - 1e-5 < min(moved)
    assert max(moved) <= math.sqrt(2)


def accuracy(released: Released, private: PrivateData) -> float:
    with torch.no_grad():
        guessed = released.student.eval()(private.images / 255).argmax(1)
    return float((guessed == private.labels).double().mean())


@pytest.mark.parametrize(("large", "small"), [(8, 1e-4), (16, 2.4e-4), (64, 5e-4), (4096, 1.0)])
def test_label_protocols_features_have_norms_of_at_most_one(large: int, small: float) -> None:
    """In float32, small squares beside a large sum are lost, and rows get longer than 1."""
    rows = torch.full((16, 4096), small)
    rows[:, :large] = 1.0
    norms = unit_rows(rows).double().norm(dim=1)
    assert float(norms.max()) <= 1.0
    assert float(norms.min()) > 1 - 2e-6
    assert torch.equal(unit_rows(torch.zeros(2, 5)), torch.zeros(2, 5))


def test_they_have_a_group_and_say_that_images_are_public() -> None:
    assert set(NAMES) <= set(method_groups()["label"])
    assert len(NAMES) >= 5
    for name in NAMES:
        assert METHODS.get(name).public_data_kinds == (PublicKind.PRIVATE_IMAGES,)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_finite_follows_for_a_record(name: str) -> None:
    _, ledger = run(name)
    level = ledger.record_level(1e-5)
    assert level is not None
    assert level.epsilon == math.inf
    assert "images are public" in level.note


@pytest.mark.parametrize("name", NAMES)
def test_on_a_worst_pair_one_label_shows_all_that_is_charged(name: str) -> None:
    method = METHODS.get(name)
    config = method(build_config(method, Preset.QUICK, MNIST)[0], MNIST).calibrate(Budget(1.0, 1e-5))
    pairs = worst_pairs(method, config, MNIST, 1e-5)
    for pair in pairs:
        assert torch.equal(pair.first.images, pair.second.images)
        assert int((pair.first.labels != pair.second.labels).sum()) == 1
    found = transcript(Runs(method, pairs[-1 if name == "label-protocol" else 0]), False, 0.0, 1e-5)
    assert found.difference == ""
    if name == "pate-fm":  # its pure loss has no closed form
        assert found.calls == 1
        return
    # Of randomised response over ten classes, and of noise on two entries, a little less than of the worst law.
    assert found.exact is not None
    assert 0.97 < max(found.exact) <= 1 + 1e-4


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("label", [10, -1])
def test_a_label_outside_the_classes_does_not_decide_whether_there_is_a_student(name: str, label: int) -> None:
    private = private_pair()[0]
    labels = private.labels.clone()
    labels[0] = label
    released, _ = run(name, dataclasses.replace(private, labels=labels))
    assert released.extras


@pytest.mark.parametrize("name", NAMES)
def test_one_class_alone_is_learnt(name: str) -> None:
    private = private_pair()[0]
    alone = dataclasses.replace(private, labels=torch.full_like(private.labels, 3))
    little = {"pate-fm": {"sigma1": 0.1, "sigma2": 0.1}, "label-protocol": {"noise_multiplier": 0.01}}
    released, _ = run(name, alone, **little.get(name, {"epsilon": 8.0}))
    assert accuracy(released, alone) > 0.9


@pytest.mark.parametrize(
    ("name", "loss"), [("rr", "likelihood"), ("lp-1st", "cross-entropy"), ("lp-2st", "likelihood")]
)
def test_a_huge_epsilon_leaves_labels_as_they_are(name: str, loss: str) -> None:
    released, _ = run(name, epsilon=800.0, loss=loss, epochs=15.0, shift=0)  # images of noise
    assert torch.equal(released.extras["noisy_labels"], private_pair()[0].labels)
    assert accuracy(released, private_pair()[0]) > 0.9


def test_two_stages_cost_one_and_the_second_keeps_more_labels() -> None:
    facts = dataclasses.replace(SMALL, private_records=600)
    private, epsilon = private_pair(facts)[0], 3.0
    change = {"epochs": 10.0, "first": 0.5, "batch_size": 16, "lr": 0.02, "shift": 0}
    released, ledger = run("lp-2st", private, epsilon=epsilon, **change)
    (event,) = ledger.events
    assert event.as_dict()["answers"] == len(private)
    assert proven(ledger.events, 1e-5).epsilon == pytest.approx(epsilon, rel=1e-4)
    kind = METHODS.get("lp-2st")
    stages = kind(dataclasses.replace(kind.Config(), first=0.5), MNIST).stages(600)
    assert sorted(np.concatenate(stages)) == list(range(600))
    kept = (released.extras["noisy_labels"] == private.labels).double()
    before, after = (float(kept[torch.from_numpy(rows)].mean()) for rows in stages)
    assert before == pytest.approx(keep_probability(epsilon, 10), abs=0.08)
    assert after > before + 0.1


def test_the_likelihood_has_the_gradient_of_the_cross_entropy_to_the_posterior() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 4, generator=generator, requires_grad=True)
    law = torch.rand(6, 4, generator=generator)
    (found,) = torch.autograd.grad(negative_log_likelihood(logits, law.log()), logits)
    posterior = torch.nn.functional.normalize(logits.detach().softmax(1) * law, p=1, dim=1)
    (wanted,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, posterior), logits)
    torch.testing.assert_close(found, wanted)


def test_the_laws_are_those_of_the_noise() -> None:
    answers = np.array([2, 0])
    law = response_law(answers, 1.5, 4)
    assert law[0, 2] / law[0, 1] == pytest.approx(math.exp(1.5))
    assert law[:, 0].sum() + (law[0, 1] * 2) == pytest.approx(law[1, 0] + 3 * law[0, 0])
    noisy, scale = np.random.default_rng(0).normal(size=(5, 3)), 0.7
    density = np.stack([np.exp(-np.abs(noisy - np.eye(3)[c]).sum(axis=1) / scale) for c in range(3)], axis=1)
    wanted = density / density.max(axis=1, keepdims=True)
    np.testing.assert_allclose(laplace_law(noisy, scale), wanted)
    assert np.isfinite(laplace_law(noisy, 1e-9)).all()


def test_drawn_labels_follow_the_noisy_counts() -> None:
    counts = np.array([[3.0, -2.0, 1.0], [-1.0, -1.0, -4.0], [0.0, 0.0, 5.0]])
    cluster = np.repeat([0, 1, 2], 6000)
    labels = drawn(counts, cluster, np.random.default_rng(0)).reshape(3, 6000)
    shares = np.stack([np.bincount(row, minlength=3) / 6000 for row in labels])
    np.testing.assert_allclose(shares, [[0.75, 0, 0.25], [1 / 3] * 3, [0, 0, 1]], atol=0.03)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("rr", {"epsilon": 0.0}), ("rr", {"lr": -1.0}), ("alibi", {"epsilon": math.inf}), ("rr", {"batch_size": 0}),
        ("lp-2st", {"first": 1.0}), ("lp-2st", {"temperature": 0.0}), ("cluster-rr", {"clusters": 0}),
    ],
)  # fmt: skip
def test_wrong_settings_are_refused(name: str, change: dict[str, Any]) -> None:
    with pytest.raises(BenchError, match=next(iter(change))):
        configured(name, change)


def test_principal_components_of_fewer_images_than_pixels() -> None:
    images = torch.randint(0, 256, (12, 1, 6, 6), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    few, many = principal(images, 4), principal(images.repeat(4, 1, 1, 1), 4)[:12]
    torch.testing.assert_close(few.abs(), many.abs(), rtol=1e-3, atol=1e-3)
    assert principal(images, 50).shape == (12, 12)
