"""Features of a frozen backbone: computed once, found again, equal by every path, and kept in the private cache."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from bench.core.errors import BenchError, UnknownNameError
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Released
from bench.experiments.release import load_released, save_released
from bench.methods.shared.transfer import transfer_options
from bench.models.build import build
from bench.models.frozen_backbone import (
    BackboneSpec,
    DenseHead,
    FrozenBackbone,
    FrozenTransfer,
    prepared,
    random_backbone,
    state_digest,
)
from bench.models.registration import check_model
from bench.storage.cache import Cache
from bench.training.context import Context
from bench.training.features import CHUNK, features_of, image_digests, student_logits, trained_part

SHAPE = (1, 8, 8)


def images(count: int, seed: int = 0, shape: tuple[int, int, int] = SHAPE) -> torch.Tensor:
    return torch.randint(0, 256, (count, *shape), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def context(cache: Cache, workers: int = 1) -> Context:
    return Context(torch.device("cpu"), Streams(0), cache, Progress(), workers)


@pytest.fixture
def backbone() -> FrozenBackbone:
    return random_backbone("small_cnn", 1, 0, SHAPE, seed=0)


def test_features_are_computed_once(backbone: FrozenBackbone, tmp_path: Path) -> None:
    some = images(CHUNK + 20)
    cache = Cache(tmp_path, {"dataset": "a"})
    first = features_of(some, backbone, context(cache), "private")
    assert first.shape == (CHUNK + 20, backbone.num_features)
    assert len(cache.made) == 2
    again = Cache(tmp_path, {"dataset": "a"})
    assert torch.equal(first, features_of(some, backbone, context(again), "private"))
    assert again.made == []
    assert len(again.found) == 2


def test_a_killed_extraction_loses_one_chunk(backbone: FrozenBackbone, tmp_path: Path) -> None:
    some = images(2 * CHUNK)
    calls = 0

    def stopping(batch: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls > CHUNK // 50 + 3:
            raise KeyboardInterrupt
        return torch.zeros(len(batch), 16)

    class Stopping(nn.Module):
        num_features = 16

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return stopping(batch)

    cache = Cache(tmp_path, {})
    broken = FrozenBackbone(backbone.spec, Stopping())
    with pytest.raises(KeyboardInterrupt):
        features_of(some, broken, context(cache), "private")
    assert len(cache.made) == 1


def test_shadow_runs_find_what_they_share(backbone: FrozenBackbone, tmp_path: Path) -> None:
    """A private set with canaries, one record fewer and another order finds the features of all shared images."""
    some = images(60)
    cache = Cache(tmp_path, {"dataset": "a"})
    original = features_of(some, backbone, context(cache), "private")
    changed = torch.cat([some[1:40], images(3, seed=9), some[45:]]).flip(0)
    shadow_run = cache.child(shadow_run=3)
    asked: list[int] = []
    backbone.register_forward_hook(lambda module, given, result: asked.append(len(given[0])))
    found = features_of(changed, backbone, context(shadow_run), "private")
    assert len(asked) == 1, "three images fill one batch"
    fresh = features_of(changed, backbone, context(Cache(None, {})), "private")
    assert torch.equal(found, fresh)
    assert torch.equal(found[-1], original[1])
    assert not (set(shadow_run.made) & set(cache.made))


def test_names_hold_nothing_of_the_images(backbone: FrozenBackbone, tmp_path: Path) -> None:
    one, other = Cache(tmp_path / "a", {}), Cache(tmp_path / "b", {})
    features_of(images(30, seed=1), backbone, context(one), "private")
    features_of(images(30, seed=2), backbone, context(other), "private")
    assert one.made == other.made


def test_artefacts_of_other_images_are_not_taken(backbone: FrozenBackbone, tmp_path: Path) -> None:
    """Two sets with the same name take turns; neither gets the other's features."""
    for seed in (1, 2, 1):
        cache = Cache(tmp_path, {})
        found = features_of(images(30, seed=seed), backbone, context(cache), "counterfactual")
        fresh = features_of(images(30, seed=seed), backbone, context(Cache(None, {})), "counterfactual")
        assert torch.equal(found, fresh)
        assert len(cache.made) == 1


def test_shadow_runs_of_an_incomplete_original(backbone: FrozenBackbone, tmp_path: Path) -> None:
    """The original's cache may grow between two calls of a shadow run; each call gets its own images' features."""
    some = images(50)
    fresh = features_of(some, backbone, context(Cache(None, {})), "private")
    cache = Cache(tmp_path, {"dataset": "a"})
    assert torch.equal(fresh, features_of(some, backbone, context(cache.child(shadow_run=1)), "private"))
    features_of(torch.cat([some[:20], images(5, seed=3)]), backbone, context(cache), "private")
    again = features_of(some, backbone, context(cache.child(shadow_run=1)), "private")
    assert torch.equal(fresh, again)


def test_each_image_by_itself(backbone: FrozenBackbone) -> None:
    some = images(40)
    every = features_of(some, backbone, context(Cache(None, {})), "private")
    changed = some.clone()
    changed[7] = 255
    other = features_of(changed, backbone, context(Cache(None, {})), "private")
    differ = (every != other).any(1).nonzero().flatten().tolist()
    assert differ == [7]
    torch.testing.assert_close(every.mean(1), torch.zeros(40), atol=1e-5, rtol=0)


def test_batch_statistics_are_never_looked_at() -> None:
    """A backbone with batch normalisation keeps its public statistics in every mode of the student."""
    net = random_backbone("test_resnet", 3, 32, (3, 8, 8), seed=0)
    student = FrozenTransfer(net, DenseHead(net.num_features, 4, 3), 3)
    before = state_digest(net)
    some = torch.rand(6, 3, 8, 8)
    calm = student.eval()(some)
    torch.testing.assert_close(student.train()(some), calm)
    assert not any(module.training for module in net.modules())
    assert state_digest(net) == before
    assert all(not p.requires_grad for p in net.parameters())


def test_digests_tell_images_apart() -> None:
    prints = image_digests(torch.cat([images(5), images(5)]))
    assert len(np.unique(prints)) == 5


def test_students_logits_are_those_of_the_whole_net(backbone: FrozenBackbone) -> None:
    student = FrozenTransfer(backbone, DenseHead(backbone.num_features, 6, 3), 3).eval()
    some = images(30)
    by_cache = student_logits(student, some, context(Cache(None, {})))
    torch.testing.assert_close(by_cache, student(some.float() / 255), atol=1e-5, rtol=1e-5)
    plain = build("small_cnn", 3, 1, 8)
    assert student_logits(plain, some, context(Cache(None, {}))).shape == (30, 3)


@pytest.mark.parametrize("name", ["small_cnn", "test_resnet"])
def test_a_student_that_carries_its_backbone_is_released_whole(name: str, tmp_path: Path) -> None:
    from bench.core.types import Facts

    facts = Facts("digits", 10, 10, 10, 3, (1, 8, 8))
    net = random_backbone(name, 1, 0 if name == "small_cnn" else 32, facts.shape, seed=4)
    student = FrozenTransfer(net, DenseHead(net.num_features, 6, 3), 3).eval()
    options = transfer_options(net, facts, "dense", 6)
    save_released(Released(student, "frozen_transfer", options), tmp_path / "student.safetensors")
    some = torch.rand(5, 1, 8, 8)
    loaded = load_released(tmp_path / "student.safetensors")
    torch.testing.assert_close(loaded.student(some), student(some))
    hidden = loaded.student.forward_head(loaded.student.forward_features(some), pre_logits=True)
    assert hidden.shape == (5, 6)


def spec(**changes: object) -> BackboneSpec:
    plain = BackboneSpec("small_cnn", "random", "0", "", "", 0, (), (), 1)
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


def test_images_are_made_ready() -> None:
    grey = torch.rand(2, 1, 8, 8)
    wide = prepared(grey, spec(in_chans=3, size=16, mean=(0.5, 0.5, 0.5), std=(0.25, 0.5, 1.0)))
    assert wide.shape == (2, 3, 16, 16)
    torch.testing.assert_close(wide[:, 0] * 0.25, wide[:, 2])
    assert prepared(torch.rand(2, 3, 8, 8), spec(in_chans=1)).shape == (2, 1, 8, 8)
    with pytest.raises(BenchError, match="the data has 2"):
        prepared(torch.rand(2, 2, 8, 8), spec(in_chans=3))


def test_a_backbone_that_timm_does_not_know() -> None:
    with pytest.raises(UnknownNameError, match="resnet50"):
        check_model("resnet5O")


def test_identity_holds_what_features_depend_on() -> None:
    base = spec().identity()
    for field, value in (("sha256", "1"), ("size", 8), ("bf16", True), ("mean", (0.1,)), ("in_chans", 3)):
        assert spec(**{field: value}).identity() != base, field
    assert spec(source="elsewhere").identity() == base


def test_controls_of_a_student_stand_on_its_backbone(backbone: FrozenBackbone) -> None:
    """Untrained and non-private controls differ from the student only in the head; the public backbone is the same."""
    from bench.core.types import Facts
    from bench.evaluation.attack.reference_models import fresh
    from bench.training.loop import FitSettings, fit

    facts = Facts("digits", 60, 10, 10, 3, SHAPE)
    student = FrozenTransfer(backbone, DenseHead(backbone.num_features, 6, 3), 3).eval()
    released = Released(student, "frozen_transfer", transfer_options(backbone, facts, "dense", 6))
    control = fresh(released, Streams(1))
    assert isinstance(control, FrozenTransfer)
    assert state_digest(control.backbone) == state_digest(backbone)
    assert not torch.equal(control.head.last.weight, student.head.last.weight)
    trained, inputs = trained_part(control, images(60), context(Cache(None, {})), "private")
    assert trained is control.head
    fit(trained, inputs, torch.arange(60) % 3, FitSettings(epochs=1), torch.Generator().manual_seed(0))
    assert state_digest(control.backbone) == state_digest(backbone)
    plain = build("small_cnn", 3, 1, 8)
    assert trained_part(plain, images(2), context(Cache(None, {})), "private")[0] is plain
