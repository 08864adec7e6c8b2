"""The committee of evaluators and the scores of reconstructions."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.rows import Estimated
from bench.core.seeds import Streams
from bench.core.types import Facts, Reconstructions
from bench.data.datasets import load
from bench.data.splits import materialise, split
from bench.evaluation.attack.evaluator_nets import AUGMENTATIONS, Recipe, recipes
from bench.evaluation.attack.evaluators import Committee, check_disjoint, digests, gate, train_committee
from bench.evaluation.attack.inversion_scores import Labelled, Observed, expected_best, margin, score, summarise
from bench.evaluation.attack.noise_verdicts import NoiseVerdicts, named_on_noise
from bench.storage.cache import Cache
from bench.training.context import Context
from bench.training.loop import FitSettings

CLASSES = 6
FACTS = Facts("shapes", 0, 0, 0, CLASSES, (1, 20, 16))


def shapes(count: int, seed: int, noise: float = 0.08) -> tuple[torch.Tensor, torch.Tensor]:
    """uint8 images of six easily distinguished classes, each a bar at another place."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    images = torch.full((count, 1, 20, 16), 0.3)
    for row, label in enumerate(labels.tolist()):
        if label < 3:
            images[row, :, 2 + 6 * label : 6 + 6 * label, 2:14] = 0.9
        else:
            images[row, :, 2:18, 1 + 5 * (label - 3) : 4 + 5 * (label - 3)] = 0.9
    images += noise * torch.randn(images.shape, generator=generator)
    return (images.clamp(0, 1) * 255).to(torch.uint8), labels


class Heard(Progress):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


def context(seed: int = 0, root: Path | None = None) -> Context:
    return Context(torch.device("cpu"), Streams(seed), Cache(root, {}), Heard())


QUICK = FitSettings(steps=60, batch_size=24, optimizer="adam", lr=3e-3)
TRIO = (
    Recipe("convolutional", 20, QUICK, "slanted"),
    Recipe("gradients", 20, QUICK, "slanted"),
    Recipe("wide", 20, QUICK, "slanted"),
)


@pytest.fixture(scope="module")
def committee() -> Committee:
    torch.set_num_threads(1)
    return train_committee(*shapes(60, 0), FACTS, context(), {}, held_out=shapes(120, 1), chosen=TRIO)


# --- what they may have seen ------------------------------------------------------------------------------------------


def test_digests_are_of_pixels_alone() -> None:
    images, _ = shapes(12, 0)
    assert len(digests(images)) == 12
    assert digests(images.float() / 255) == digests(images)
    assert len(digests(torch.cat([images, images[:3]]))) == 12
    changed = images.clone()
    changed[0, 0, 5, 5] ^= 1
    assert len(digests(images) & digests(changed)) == 11
    assert not digests(images) & digests(images.transpose(2, 3))


def test_common_images_are_counted_and_refused() -> None:
    images, _ = shapes(12, 0)
    check_disjoint("a", digests(images[:6]), "b", digests(images[6:]))
    with pytest.raises(BenchError, match=r"the auxiliary data and the private records have 2 images in common"):
        check_disjoint("the auxiliary data", digests(images[:6]), "the private records", digests(images[4:]))


def test_an_evaluator_that_saw_private_records_is_refused() -> None:
    images, labels = shapes(60, 0)
    private = {"the private records": digests(images[59:])}
    with pytest.raises(BenchError, match="training images and the private records have 1 image in common"):
        train_committee(images, labels, FACTS, context(), private, held_out=shapes(12, 1), chosen=TRIO)
    with pytest.raises(BenchError, match="held out"):
        train_committee(images, labels, FACTS, context(), {}, held_out=(images[:3], labels[:3]), chosen=TRIO)
    with pytest.raises(BenchError, match="class 5"):
        train_committee(images[:5], labels[:5], FACTS, context(), {}, held_out=shapes(12, 1), chosen=TRIO)


# --- training ---------------------------------------------------------------------------------------------------------


def test_evaluators_are_good_and_say_so(committee: Committee) -> None:
    assert min(committee.accuracies) > 0.95
    assert committee.agreement <= min(committee.accuracies)
    assert committee.false_positives < 0.02
    assert "convolutional" in str(committee)
    assert committee.held_out == 120


def test_evaluators_come_from_the_cache_and_are_the_same_for_all_seeds(tmp_path: Path, committee: Committee) -> None:
    data, held_out = shapes(60, 0), shapes(120, 1)
    first = context(0, tmp_path)
    made = train_committee(*data, FACTS, first, {}, held_out=held_out, chosen=TRIO)
    again = context(5, tmp_path)
    found = train_committee(*data, FACTS, again, {}, held_out=held_out, chosen=TRIO)
    assert len(first.cache.made) == 1
    assert again.cache.made == []
    asked = shapes(24, 7)[0]
    assert torch.equal(made.predict(asked).probabilities, found.predict(asked).probabilities)
    assert torch.equal(made.predict(asked).probabilities, committee.predict(asked).probabilities)
    assert again.progress.said == [str(found)]  # type: ignore[attr-defined]
    other = context(0, tmp_path)
    train_committee(*shapes(60, 9), FACTS, other, {}, held_out=held_out, chosen=TRIO)
    assert len(other.cache.made) == 1


def test_few_photos_a_class_make_a_discriminant() -> None:
    few = recipes(FACTS, 18)
    assert [recipe.kind for recipe in few] == ["convolutional", "gradients", "discriminant"]
    assert all(recipe.augmentation == "turned" for recipe in few)
    many = recipes(FACTS, 50 * CLASSES)
    assert "discriminant" not in [recipe.kind for recipe in many]
    images, labels = shapes(18, 0)
    # Mirrored and shifted bars change their classes; upright ones 7 % away do not.
    net = few[2].train(images, labels, FACTS, torch.Generator().manual_seed(0), torch.device("cpu"))
    asked, truth = shapes(60, 3)
    level = truth < 3
    from bench.training.loop import predict

    right = predict(net, asked).argmax(1) == truth
    assert right[level].double().mean() > 0.9


@pytest.mark.parametrize("name", ["turned", "slanted"])
def test_augmented_images_stay_in_range_and_follow_their_generator(name: str) -> None:
    turned = AUGMENTATIONS[name]
    images = shapes(30, 0)[0].float() / 255
    first, same = (turned(images, torch.Generator().manual_seed(1)) for _ in range(2))
    other = turned(images, torch.Generator().manual_seed(2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert first.min() >= 0
    assert first.max() <= 1


def test_large_images_are_scaled_down_and_colours_taken() -> None:
    facts = replace(FACTS, shape=(3, 90, 70))
    for recipe in (*recipes(facts, 10), *recipes(facts, 1_000)):
        net = recipe.build(facts)
        assert net(torch.rand(2, 3, 90, 70)).shape == (2, CLASSES)
        assert max(recipe.size(facts)) <= 64
    tiny = replace(FACTS, shape=(1, 8, 8))
    for recipe in (*recipes(tiny, 10), *recipes(tiny, 1_000)):
        assert recipe.build(tiny)(torch.rand(2, 1, 8, 8)).shape == (2, CLASSES)


def test_a_folder_of_identities_needs_nothing_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_DATA", str(tmp_path / "root"))
    for half, count, seed in (("train", 42, 0), ("test", 18, 1)):
        for number, (image, label) in enumerate(zip(*shapes(count, seed), strict=True)):
            path = tmp_path / "people" / half / f"id{int(label)}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[0].numpy()).save(path)
    loaded = load(f"folder:{tmp_path / 'people'}")
    data = materialise(loaded, split(loaded))
    known, private = data.private.facts, data.private
    forbidden = {"the private records": digests(private.images), "the public images": digests(data.public.images)}
    # 3 images a class, as for faces; bars that may be mirrored are told apart by their columns' distance to the middle.
    plan = [replace(recipe, augmentation="slanted") for recipe in recipes(known, len(data.test_labels))]
    plan = [replace(recipe, settings=recipe.settings and QUICK) for recipe in plan]
    found = train_committee(
        data.test_images, data.test_labels, known, context(), forbidden,
        held_out=(private.images, private.labels), chosen=plan,
    )  # fmt: skip
    assert found.kinds == ("convolutional", "gradients", "discriminant")
    assert min(found.accuracies) > 0.7


# --- verdicts ---------------------------------------------------------------------------------------------------------


def test_a_verdict_needs_all_three(committee: Committee) -> None:
    images, labels = shapes(60, 4)
    verdict = committee.predict(images, batch_size=25)
    assert verdict.labels.shape == (3, 60)
    assert verdict.hits(labels).double().mean() > 0.9
    assert not verdict.hits((labels + 1) % CLASSES).any()
    assert verdict.top5.sum(2).unique().tolist() == [5]
    assert (verdict.hits(labels) <= verdict.within_five(labels)).all()
    split = replace(verdict, labels=torch.stack([labels, labels, (labels + 1) % CLASSES]))
    assert not split.hits(labels).any()


def test_noise_pleases_one_evaluator_more_often_than_all(committee: Committee) -> None:
    noise = torch.rand(200, 1, 20, 16, generator=torch.Generator().manual_seed(0))
    verdict = committee.predict(noise)
    assert (verdict.labels == verdict.labels[0]).all(0).double().mean() < 0.8


def test_the_worst_class_counts_as_the_committees_false_positives(
    committee: Committee, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten of fifty images of other classes are mistaken for class 1, none for any other class."""
    images, truth = shapes(60, 4)[0], torch.arange(60) // 10
    said = truth.clone()
    said[:10] = 1
    verdict = replace(committee.predict(images), labels=said.expand(3, -1))
    monkeypatch.setattr(Committee, "predict", lambda *_: verdict)
    settings = replace(QUICK, steps=1)
    plan = [replace(recipe, settings=settings) for recipe in TRIO]
    made = train_committee(*shapes(60, 0), FACTS, context(), {}, held_out=(images, truth), chosen=plan)
    assert made.false_positives == pytest.approx(10 / 50)
    assert "at most 20.00 % for a class" in str(made)


# --- scores -----------------------------------------------------------------------------------------------------------


def evaluate(
    made: Reconstructions, committee: Committee, members: Labelled, nonmembers: Labelled, seen: Observed | None = None
) -> dict[str, Estimated]:
    return summarise(score(made, committee, members, nonmembers, seen), committee)


def test_the_expected_best_of_a_part_by_hand() -> None:
    scores = torch.tensor([[3.0, 1.0, 2.0]])
    assert float(expected_best(scores, 3)) == 3
    assert float(expected_best(scores, 1)) == pytest.approx(2)
    assert float(expected_best(scores, 2)) == pytest.approx((3 + 3 + 2) / 3)


def test_copies_of_members_are_told_from_good_pictures(committee: Committee) -> None:
    members, nonmembers = shapes(60, 10), shapes(42, 11)
    copied = Reconstructions(members[0].float() / 255, members[1])
    found = evaluate(copied, committee, members, nonmembers)
    assert found["committee top-1"].value > 0.9
    assert found["committee top-1"].n == CLASSES
    assert found["ssim member - non-member"].low > 0
    assert found["psnr member - non-member"].low > 5
    assert found["distance member"].value < found["distance non-member"].value
    assert found["instance recovery"].value == 1
    assert found["instance recovery by chance"].value == pytest.approx(1 / 8)
    fresh = shapes(60, 12)
    good = evaluate(Reconstructions(fresh[0].float() / 255, fresh[1]), committee, members, nonmembers)
    assert good["committee top-1"].value > 0.9
    assert abs(good["ssim member - non-member"].value) < 0.02 < found["ssim member - non-member"].low
    assert abs(good["kid"].value) < 0.5
    assert good["instance recovery"].value < 0.3


def test_a_larger_pool_is_no_nearer(committee: Committee) -> None:
    """Ten times as many members as non-members of the same distribution must not cause a gap."""
    fresh = shapes(60, 12)
    made = Reconstructions(fresh[0].float() / 255, fresh[1])
    found = evaluate(made, committee, shapes(600, 10), shapes(60, 11))["ssim member - non-member"]
    assert found.low < 0 < found.high


def test_unreached_counts_as_failed(committee: Committee) -> None:
    images, labels = shapes(60, 4)
    reached = torch.arange(60) >= 30
    made = Reconstructions(images.float() / 255, labels, reached)
    found = evaluate(made, committee, shapes(60, 10), shapes(60, 11))
    assert found["committee top-1"].value <= 0.5
    assert max(found[f"evaluator {place} top-1"].value for place in (1, 2, 3)) <= 0.5


def test_pictures_of_other_classes_fail(committee: Committee) -> None:
    images, labels = shapes(60, 4)
    made = Reconstructions(images.float() / 255, (labels + 1) % CLASSES)
    found = evaluate(made, committee, shapes(60, 10), shapes(60, 11))
    assert found["committee top-1"].value == 0
    assert found["committee top-1"].high < 0.5
    assert found["committee top-5"].value > 0


def test_nans_and_missing_classes_are_no_crash(committee: Committee) -> None:
    images, labels = shapes(12, 4)
    broken = images.float() / 255
    broken[0] = math.nan
    found = evaluate(Reconstructions(broken, labels), committee, shapes(60, 10), (images[:0], labels[:0]))
    assert not found.keys() & {"ssim member - non-member", "instance recovery"}
    assert "kid" in found


def test_non_members_that_the_evaluators_saw_are_reported(committee: Committee) -> None:
    images, labels = shapes(12, 4)
    made = Reconstructions(images.float() / 255, labels)
    assert score(made, committee, shapes(60, 10), shapes(60, 11)).judged_on == ""
    assert "trained on non-members" in score(made, committee, shapes(60, 10), shapes(60, 0)).judged_on


def test_answers_inverted_one_by_one(committee: Committee) -> None:
    truth, labels = shapes(48, 20)
    member = torch.arange(48) // CLASSES % 2 == 0
    noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(0))
    made = truth.float() / 255 + noise * torch.where(member, 0.02, 0.2).view(-1, 1, 1, 1)
    images, classes = shapes(12, 4)
    reconstructions = Reconstructions(images.float() / 255, classes, observed=made)
    seen = Observed(truth, labels, member)
    found = evaluate(reconstructions, committee, shapes(60, 10), shapes(60, 11), seen)
    assert found["answers: psnr gap"].low > 5
    assert found["answers: psnr member"].value == pytest.approx(34, abs=2)
    with pytest.raises(BenchError, match="48 images for 47 observed"):
        evaluate(
            reconstructions, committee, shapes(60, 10), shapes(60, 11), Observed(truth[1:], labels[1:], member[1:])
        )


def test_margins_over_controls(committee: Committee) -> None:
    members, nonmembers = shapes(60, 10), shapes(60, 11)
    good, wrong = shapes(60, 4), shapes(60, 5)
    scored = [
        score(Reconstructions(images.float() / 255, (labels + turn) % CLASSES), committee, members, nonmembers)
        for (images, labels), turn in ((good, 0), (wrong, 1))
    ]
    assert margin(*scored).low > 0
    assert margin(scored[1], scored[1]).value == 0
    assert np.isfinite(margin(*scored, "ssim member").value)


# --- the gate ---------------------------------------------------------------------------------------------------------


def about(value: float, low: float, high: float) -> Estimated:
    return Estimated(value=value, low=low, high=high, n=10)


def test_the_gate_asks_three_things() -> None:
    nothing = about(0.1, 0.0, 0.3)
    assert gate(about(0.9, 0.8, 1.0), nothing, 10, 0.01) == ""
    assert "natural images" in gate(about(0.9, 0.8, 1.0), nothing, 10, 0.05)
    assert "not above 30.0 %" in gate(about(0.3, 0.29, 0.32), about(0.0, 0.0, 0.1), 10, 0.01)
    assert "without any target" in gate(about(0.6, 0.3, 0.8), nothing, 10, 0.01)
    assert gate(about(0.9, 0.8, 1.0), nothing, 2, 0.01) == "", "three times chance would be 150 %"


def test_what_noise_is_named_does_not_count(committee: Committee) -> None:
    found = named_on_noise(committee, FACTS, None)
    assert found.embedding is None
    assert bool((found.together <= found.each.amin(0) + 1e-12).all())
    assert float(found.each[0].sum()) >= 1 - 1e-12  # the worst grain of each class
    images, labels = shapes(60, 7)
    made = Reconstructions(images.float() / 255, labels)
    share = torch.zeros(CLASSES, dtype=torch.float64)
    share[0] = 1.0
    said = NoiseVerdicts(share, share.expand(3, -1), None)
    seen = score(made, committee, shapes(60, 10), shapes(60, 11), noise=said).values
    assert seen["top1 beyond noise"][labels == 0].sum() == 0 < seen["top1"][labels == 0].sum()
    assert (seen["top1 beyond noise"] == seen["top1"])[labels != 0].all()
    assert said.told(("a", "b", "c"))["all"] == {"0": 1.0}
