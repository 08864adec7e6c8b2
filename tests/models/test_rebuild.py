"""Nets of releases: what a stranger's file may ask for, and what it may not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from bench.core.errors import BenchError
from bench.core.types import Facts, Released
from bench.experiments.release import FORMAT, load_released, save_released
from bench.models.build import build
from bench.models.frozen_backbone import frozen_transfer, random_backbone
from bench.models.rebuild import make_student

OPTIONS = {"num_classes": 4, "in_chans": 1, "img_size": 8}


def asked(path: Path, student: Any = "small_cnn", options: Any = OPTIONS, text: str = "") -> Path:
    """Write a release with the weights of a small net that asks for `student` with `options`."""
    tensors = {f"student/{name}": tensor for name, tensor in build("small_cnn", **OPTIONS).state_dict().items()}
    about = text or json.dumps({"format": FORMAT, "student": student, "options": options})
    save_file(tensors, path, {"release": about})
    return path


def test_the_student_comes_back(tmp_path: Path) -> None:
    found = load_released(asked(tmp_path / "a.safetensors"))
    assert found.student_options == OPTIONS
    assert not found.student.training


@pytest.mark.parametrize(
    ("student", "options", "says"),
    [
        ("resnet18", {"num_classes": 4, "in_chans": 3, "checkpoint_path": "/etc/passwd"}, "checkpoint_path: Extra"),
        ("small_cnn", {**OPTIONS, "checkpoint_path": "/etc/passwd"}, "checkpoint_path: Extra"),
        ("resnet18", {"num_classes": 4, "in_chans": 3, "pretrained": True}, "pretrained: Extra"),
        ("resnet18", {"num_classes": 4, "in_chans": 3, "pretrained_cfg": {"file": "x"}}, "pretrained_cfg: Extra"),
        ("resnet18", {"num_classes": 4, "in_chans": 3, "width": 3}, "width: Extra"),
        ("resnet18", {"num_classes": 10**9, "in_chans": 3}, "num_classes: it must be less"),
        ("resnet18", {"num_classes": "4", "in_chans": 3}, "num_classes: it must be a valid integer"),
        ("resnet18", {"in_chans": 3}, "num_classes: Field required"),
        ("small_cnn", {**OPTIONS, "img_size": [8, 10**6]}, "img_size"),
        ("salimans_mlp", {**OPTIONS, "widths": [10] * 1000}, "widths"),
        ("small_cnn", {**OPTIONS, "num_classes": 5}, "cannot take its weights"),
        ("vgg19", {"num_classes": 32768, "in_chans": 64}, "cannot take its weights"),
        ("small_cnn", {**OPTIONS, "img_size": 4096}, "cannot take its weights"),
        ("local-dir:/etc", OPTIONS, "unknown model"),
        ("hf-hub:someone/something", OPTIONS, "unknown model"),
        (3, OPTIONS, "names no net"),
        ("small_cnn", 3, "names no net"),
        ("frozen_transfer", {**OPTIONS, "backbone": {"name": "small_cnn"}}, "backbone"),
        ("frozen_transfer", OPTIONS, "needs the option backbone"),
    ],
)
def test_other_options_build_nothing(tmp_path: Path, student: Any, options: Any, says: str) -> None:
    with pytest.raises(BenchError, match=says):
        load_released(asked(tmp_path / "a.safetensors", student, options))


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "{", '{"format": NaN}'])
def test_metadata_that_is_no_object_is_damage(tmp_path: Path, text: str) -> None:
    with pytest.raises(BenchError, match="is damaged"):
        load_released(asked(tmp_path / "a.safetensors", text=text))


def test_a_backbone_has_bounds_too(tmp_path: Path) -> None:
    spec = random_backbone("small_cnn", 1, 8, (1, 8, 8), 0).spec
    options = {**OPTIONS, **spec.options()}
    net = frozen_transfer(**options)
    save_released(Released(net, "frozen_transfer", options), tmp_path / "good.safetensors")
    assert load_released(tmp_path / "good.safetensors").student_name == "frozen_transfer"
    for change in ({"size": 10**6}, {"in_chans": 10**6}, {"name": "local-dir:/etc"}):
        options = {**OPTIONS, "backbone": {**spec.options()["backbone"], **change}}
        with pytest.raises(BenchError, match=r"takes no backbone|unknown model"):
            load_released(asked(tmp_path / "a.safetensors", "frozen_transfer", options))


def test_what_could_not_be_rebuilt_is_not_released(tmp_path: Path) -> None:
    options = {**OPTIONS, "checkpoint_path": ""}
    with pytest.raises(BenchError, match="a name of its own"):
        save_released(Released(torch.nn.Identity(), "small_cnn", options), tmp_path / "a.safetensors")
    student = build("small_cnn", **OPTIONS)
    student.extra = torch.nn.Linear(2, 2)
    with pytest.raises(BenchError, match=r"extra.* is too much"):
        save_released(Released(student, "small_cnn", OPTIONS), tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_worker_builds_the_trained_part_of_a_teacher_by_its_name() -> None:
    """A spawned worker gets a name and options, and has imported no method."""
    build_it = (
        "from bench.models.build import build; assert len(list(build('above_frozen', 3, 1, 8).parameters())) == 2"
    )
    subprocess.run([sys.executable, "-c", build_it], check=True)


def test_a_student_that_no_release_may_hold_is_refused_before_training() -> None:
    facts = Facts("digits", 10, 10, 10, 4, (1, 8, 8))
    with pytest.raises(BenchError, match=r"small_cnn in a release is not built with such options .trees: "):
        make_student("small_cnn", facts, torch.Generator(), trees=5)
