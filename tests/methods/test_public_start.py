"""Teachers that start from public weights: frozen once, independent of each other, named in the row."""

from __future__ import annotations

import dataclasses
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bench.core.config import Preset, as_dict, build_config
from bench.core.errors import BenchError
from bench.core.lazy_libraries import timm
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Adjacency, Budget, PrivateData, PublicKind, Released
from bench.experiments.release import load_released, save_released
from bench.interface.registry import METHODS
from bench.methods.distillation.dpsd_family import train_teacher
from bench.methods.shared.public_start import start_of
from bench.methods.shared.teachers import labelling, train_ensemble
from bench.models.feature_net import OnFixedMap
from bench.models.public_layers import cut
from bench.models.registration import register_all
from bench.storage.cache import Cache
from bench.training.context import Context
from bench.training.loop import FitSettings, predict
from bench.training.teacher import TeacherTask, answered
from helpers.ledgers import seeded_ledger
from helpers.small_sets import SMALL, private_pair, public_set

NET, SIDE = "test_resnet", 16
DEPTHS = ("all", "layer2", "nothing")


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BENCH_DATA", str(tmp_path / "data"))
    register_all()
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        save_file(timm.create_model(NET).state_dict(), tmp_path / "public.safetensors")
    return tmp_path / "public.safetensors"


def context(cache: Cache | None = None) -> Context:
    return Context(torch.device("cpu"), Streams(0), cache or Cache(None, {}), Progress())


def bound(name: str, weights: Path, **changes: Any) -> Any:
    method = METHODS.get(name)
    config = dataclasses.replace(
        build_config(method, Preset.TINY, SMALL)[0], teacher=NET, teacher_init=f"file:{weights}", teacher_pixels=SIDE,
        **changes,
    )  # fmt: skip
    return method(method(config, SMALL).pin_teacher(), SMALL)


def released(name: str, weights: Path, **changes: Any) -> Released:
    method = bound(name, weights, student="frozen_transfer", **changes)
    method = type(method)(method.calibrate(Budget(10.0, 1e-5)), SMALL)
    ledger = seeded_ledger(method.unit, Adjacency.REPLACE, np.random.default_rng(0))
    return method.train_student(private_pair()[0], public_set(), ledger, context())  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("net", "block"), [("test_resnet", "layer2"), ("test_efficientnet", "blocks.2"), ("test_vit", "blocks.1")]
)
def test_the_layers_below_and_above_a_block_are_the_net(net: str, block: str) -> None:
    size = {"img_size": 32} if "vit" in net else {}
    whole = timm.create_model(net, num_classes=0, **size).eval()
    below, above = cut(whole, block)
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(above(below(images)), whole(images))
        # Worker processes get the frozen layers.
        assert torch.equal(pickle.loads(pickle.dumps(below))(images), below(images))
    inside, outside = dict(below.named_parameters()), dict(above.named_parameters())
    assert not inside.keys() & outside.keys()
    assert inside.keys() | outside.keys() == dict(whole.named_parameters()).keys()


@pytest.mark.parametrize("block", ["layer2.0.conv1", "layer9"])
def test_no_cut_where_layers_above_use_more_or_nothing_has_that_name(block: str) -> None:
    with pytest.raises(BenchError, match=r"layer2\.0\.conv1 use more|no block 'layer9'; there are .*layer2"):
        cut(timm.create_model("test_resnet", num_classes=0), block)


@pytest.mark.few(1)
@pytest.mark.parametrize("frozen", DEPTHS)
def test_one_record_changes_one_teacher_to_the_bit(weights: Path, frozen: str) -> None:
    method = bound("dpsd-sound", weights, teacher_frozen=frozen, teachers=4)
    private, _ = private_pair()
    other = PrivateData(private.images.clone(), private.labels, private.facts)
    other.images[0] = 255 - other.images[0]
    ours, theirs = (train_ensemble(method.config, data, context()) for data in (private, other))
    same = [
        all(np.array_equal(array[number], theirs.states[name][number]) for name, array in ours.states.items())
        for number in range(4)
    ]
    assert sorted(same) == [False, True, True, True]


def test_frozen_layers_run_once_and_are_no_part_of_a_teacher(weights: Path, tmp_path: Path) -> None:
    private, _ = private_pair()
    cache = Cache(tmp_path / "cache", {"dataset": "a"})
    method = bound("dpsd-sound", weights, teacher_frozen="layer2", teachers=3)
    ensemble = train_ensemble(method.config, private, context(cache))
    assert cache.counts()["features"] == (1, 0)
    assert {name.split(".")[1] for name in ensemble.states if name.startswith("layers.")} == {"layer3", "layer4"}
    more = bound("dpsd-sound", weights, teacher_frozen="layer2", teachers=2)
    train_ensemble(more.config, private, context(cache))
    assert cache.counts()["features"][0] == 1


def test_an_ensemble_sees_images_as_its_teachers_were_trained(weights: Path) -> None:
    private, _ = private_pair()
    method = bound("dpsd-sound", weights, teacher_frozen="layer2", teachers=1)
    here = context()
    ensemble = train_ensemble(method.config, private, here)
    start = start_of(method.config, SMALL, here)
    assert start is not None
    teacher = start.teacher(torch.Generator())
    assert isinstance(teacher, OnFixedMap)
    teacher.head.load_state_dict({name: torch.as_tensor(array[0]) for name, array in ensemble.states.items()})
    torch.testing.assert_close(ensemble.logits(private.images)[0], predict(teacher, private.images))
    with labelling(method.config, private, here) as label:
        assert (label(private.images) == ensemble.labels(private.images)).all()


@pytest.mark.parametrize("frozen", DEPTHS)
def test_a_teacher_trains_all_that_is_not_frozen_and_is_cached(weights: Path, frozen: str, tmp_path: Path) -> None:
    private, cache = private_pair()[0], Cache(tmp_path / "cache", {"dataset": "a"})
    config = bound("dpsd", weights, teacher_frozen=frozen).config
    first = train_teacher(config, private, context(cache))
    again = train_teacher(config, private, context(cache))
    for one, two in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two)
    public = load_file(weights)
    moved = {
        layer.split(".")[0]
        for name, weight in first.named_parameters()
        if not torch.equal(weight, public.get(layer := re.sub(r"^(head\.)?layers\.", "", name), weight))
    }
    expected = {"all": set(), "layer2": {"layer3", "layer4"}}
    assert moved == expected.get(frozen, {"conv1", "bn1", "layer1", "layer2", "layer3", "layer4"})


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["dgd", "dgd-sound", "dpsd", "dpsd-t", "dpsd-sound", "pate-gnmax"])
def test_a_student_on_the_public_backbone_is_released_as_a_head(weights: Path, name: str, tmp_path: Path) -> None:
    made = released(name, weights, teacher_frozen="layer2")
    student = made.student
    assert isinstance(student, OnFixedMap)
    assert set(student.state_dict()) == {"head.last.weight", "head.last.bias"}
    save_released(made, tmp_path / "released")
    images = private_pair()[0].images
    assert torch.equal(predict(load_released(tmp_path / "released").student, images), predict(student, images))


def test_the_row_names_the_public_source_and_no_path(weights: Path) -> None:
    for name, kinds in (("dgd", ()), ("pate-gnmax", (PublicKind.UNLABELLED,))):
        method = bound(name, weights)
        assert method.public_kinds() == (PublicKind.TRANSFERRED, *kinds)
        assert method.public_words().startswith(f"weights of {NET} from a user's file")
        assert str(weights.parent) not in str(as_dict(method.config))
        assert len(method.config.teacher_init_sha256) == 64
    package = METHODS.get("dpsd")
    config = dataclasses.replace(package.Config(), teacher="tf_efficientnet_lite0", teacher_init="package")
    facts = dataclasses.replace(SMALL, dataset="cifar10", shape=(3, 32, 32))
    found = package(package(config, facts).pin_teacher(), facts)
    assert found.public_words().startswith("ImageNet through tf_efficientnet_lite0 (overlap: classes in common")


def test_settings_at_their_defaults_are_in_no_key() -> None:
    for name in ("dgd", "dpsd", "dpsd-sound", "pate", "fed-dpsd"):
        config, _ = build_config(METHODS.get(name), Preset.TINY, SMALL)
        assert not {
            key for key in as_dict(config) if key.startswith(("teacher_init", "teacher_frozen", "teacher_votes"))
        }


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"teacher_init": "internet"}, "write random, package, hub, file:PATH"),
        ({"teacher_frozen": "layer9"}, "no block 'layer9'; there are"),
        ({"teacher_init": "random", "student": "frozen_transfer"}, "set teacher_init too"),
        ({"teacher_weights": "package", "teacher_records": 9}, "leave out teacher_weights or teacher_init"),
    ],
)
def test_settings_that_do_not_fit_are_refused(weights: Path, changes: dict[str, Any], told: str) -> None:
    config = dataclasses.replace(bound("dpsd", weights).config, **changes)
    with pytest.raises(BenchError, match=told):
        METHODS.get("dpsd")(config, SMALL).pin_teacher()


def test_a_head_on_fixed_features_is_not_said_to_learn_from_unlabelled_images(weights: Path) -> None:
    with pytest.raises(BenchError, match=r"Give --set pate-gnmax\.student_training=supervised"):
        released("pate-gnmax", weights, student_training="self-training")


def test_standardised_answers_undo_what_all_queries_share() -> None:
    settings = FitSettings(steps=1)
    plain, even = (TeacherTask("small_cnn", 3, settings, standardised=value) for value in (False, True))
    logits = torch.randn(2, 50, 3, generator=torch.Generator().manual_seed(0))
    biased = logits * torch.tensor([1.0, 5.0, 0.1]) + torch.tensor([9.0, 0.0, 0.0])
    assert (answered(plain, biased).argmax(2) == 0).float().mean() > 0.9
    torch.testing.assert_close(answered(even, biased), answered(even, logits))
    alone = answered(even, biased[:1])
    assert torch.equal(alone[0], answered(even, biased)[0])
