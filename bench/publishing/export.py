"""Export of released students to folders that timm loads, checked by loading them again.

Only the student is exported. A frozen backbone that can be fetched by its hash is left out: its weights are not ours.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save
from timm.models import model_entrypoint
from torch import nn

from bench.core.errors import BenchError
from bench.core.printable import page
from bench.core.processes import owner_only
from bench.core.types import Released
from bench.data.datasets import all_datasets
from bench.data.own_arrays import is_features
from bench.data.spec import DatasetSpec
from bench.data.text import is_text
from bench.experiments.release import load_released
from bench.models.classifiers import WhitenImage
from bench.models.feature_net import OnFixedMap
from bench.models.frozen_backbone import FrozenTransfer
from bench.models.layers import BytesAboutHalf, Normalise
from bench.models.registration import OWN_MODULES
from bench.publishing.model_card import CardFacts, card
from bench.publishing.reproduce import command_of
from bench.results.record import SAFE_KEY, Record
from bench.results.run_dir import RunDir
from bench.storage.files import write_together

PROBES = 8  # images for the bit-exact comparison of exported and released student


def export_student(record: Record, run_dir: RunDir, out: Path) -> Path:
    """Export the student of `record`, released in `run_dir`, to the folder ``out/KEY`` and return the folder.

    Raises :class:`BenchError` if the record has no student, the file is absent or altered, the weights of a frozen
    backbone are missing, or timm loads a different student.
    """
    if record.student is None or record.privacy is None or record.utility is None:
        raise BenchError(f"{record.key} has no student: its cell failed.")
    if not SAFE_KEY.fullmatch(record.key) or record.student.file != f"released/{record.key}.safetensors":
        raise BenchError(f"the record {record.key[:80]!r} names its files differently from this program.")
    released = load_released(run_dir.path / record.student.file, record.student.sha256)
    spec = all_datasets().get(record.dataset)
    weights = _weights(released.student)
    files = {
        "model.safetensors": weights,
        "config.json": (json.dumps(config_of(released, spec), indent=2) + "\n").encode(),
        "README.md": page(card(record, _facts(record, released, spec, weights))),
    }
    with tempfile.TemporaryDirectory(prefix="bench-export-") as folder:
        place = Path(folder) / record.key
        write_together({place / name: data for name, data in files.items()})
        _check(place, released, _shape(released, spec), record.key)
    with owner_only(record.disclosure.owner_only):
        write_together({out / record.key / name: data for name, data in files.items()})
    return out / record.key


def _weights(student: nn.Module) -> bytes:
    # Clone, because safetensors refuses tied weights that share storage.
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in student.state_dict().items()}
    return save(tensors, metadata={"format": "pt"})


def config_of(released: Released, spec: DatasetSpec | None) -> dict[str, Any]:
    """Return timm's ``config.json``: architecture, arguments and pretrained configuration."""
    options, student = released.student_options, released.student
    known = dict(getattr(student, "default_cfg", None) or getattr(student, "pretrained_cfg", None) or {})
    channels, height, width = _shape(released, spec)
    # Mean 0 and standard deviation 1, because students take values in [0, 1] and normalise in a layer of their own.
    pretrained = {
        "input_size": [channels, height, width], "fixed_input_size": "img_size" in options,
        "num_classes": options["num_classes"], "mean": [0.0] * channels, "std": [1.0] * channels,
        "interpolation": "bilinear", "crop_pct": 1.0, "custom_load": False,
        **{name: known[name] for name in ("first_conv", "classifier") if known.get(name)},
    }  # fmt: skip
    config: dict[str, Any] = {
        "architecture": released.student_name, "num_classes": options["num_classes"],
        "num_features": int(getattr(student, "num_features", 0)) or None, "pretrained_cfg": pretrained,
        "model_args": options,
    }  # fmt: skip
    if spec is not None and len(spec.class_names) == options["num_classes"]:
        config["label_names"] = list(spec.class_names)
    return config


def _shape(released: Released, spec: DatasetSpec | None) -> tuple[int, int, int]:
    """Return the image shape (channels, height, width): the student's, or the data's if the student takes any size."""
    options = released.student_options
    size = options.get("img_size")
    if size is None:
        size = (32, 32) if spec is None else spec.shape[1:]
    height, width = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
    return int(options["in_chans"]), height, width


def _check(folder: Path, released: Released, shape: tuple[int, int, int], key: str) -> None:
    """Raise :class:`BenchError` unless timm loads the released student from `folder`, bit for bit."""
    images = torch.rand(PROBES, *shape, generator=torch.Generator().manual_seed(0))
    images = (images * 255).round() / 255
    with torch.no_grad():
        loaded = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
        same = torch.equal(loaded(images), released.student.eval()(images))
    if not same or not _equal(loaded.state_dict(), released.student.state_dict()):
        raise BenchError(
            f"timm loads a student different from that of {key} from the exported folder. The export is deleted."
        )


def _equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def _facts(record: Record, released: Released, spec: DatasetSpec | None, weights: bytes) -> CardFacts:
    command, remark = command_of(record)
    student = released.student
    frozen = student.backbone.spec if isinstance(student, FrozenTransfer) else None
    apart, shape = frozen is not None and not frozen.carried, _shape(released, spec)
    return CardFacts(
        command=command,
        no_command="" if command else remark,
        licence="the user's own" if record.cell.own_folder else spec.licence if spec else "not known",
        source="" if spec is None else spec.source,
        citation="" if spec is None else spec.citation,
        task="text" if is_text(shape) else "tabular" if is_features(shape) else "image",
        own_net=model_entrypoint(released.student_name).__module__.startswith(OWN_MODULES),
        backbone=frozen.name if frozen is not None and apart else "",
        backbone_words="" if frozen is None else f"{frozen.name}, {frozen.source}, SHA-256 {frozen.sha256}",
        preprocessing=_preprocessing(released, shape) + _own_words(record, shape),
        digest=hashlib.sha256(weights).hexdigest(),
        extras=sorted({name.partition("/")[0] for name in released.extras}),
    )


def _preprocessing(released: Released, shape: tuple[int, int, int]) -> list[str]:
    """Return a description of the student's input and its normalisation."""
    channels, height, width = shape
    if is_text(shape):
        return [
            f"Sentences of up to {width} words, as images of 2 channels and one row: a word's number is 256 times the "
            "first channel plus the second, both as bytes. bench.data.text writes them; values are bytes over 255."
        ]
    what = f"Rows of {width} numbers, as images" if is_features(shape) else "Images"
    lines = [f"{what} of {channels} x {height} x {width} (channels, height, width), values in [0, 1]: bytes over 255."]
    student = released.student
    if isinstance(student, FrozenTransfer):
        spec = student.backbone.spec
        size = f"brought to {spec.size} x {spec.size} by bilinear interpolation, " if spec.size else ""
        scale = f"mean {_listed(spec.mean)}, deviation {_listed(spec.std)}" if spec.mean else "none"
        return [
            *lines,
            f"The net prepares them itself: {size}{spec.in_chans} channels, normalised by channel: {scale}.",
        ]
    if isinstance(student, OnFixedMap):
        return [*lines, "The net computes their scattering coefficients itself, normalised within each image."]
    known = {
        Normalise: "mean 0.5, deviation 0.5",
        BytesAboutHalf: "255 times the value, less 0.5",
        WhitenImage: "each image to mean 0 and deviation 1 by itself",
    }
    for layer in student.modules():
        if type(layer) in known:
            return [*lines, f"The net normalises them itself: {known[type(layer)]}."]
    return [*lines, "They are not normalised further."]


def _own_words(record: Record, shape: tuple[int, int, int]) -> list[str]:
    """Return how a student of a user's own data gets its input and numbers its outputs; nothing for other data."""
    if not record.cell.own_folder:
        return []
    how = (
        "Images are scaled by Pillow's bilinear filter to cover this size, and cropped at the centre; transparent "
        "pixels are white."
    )
    if is_features(shape):
        how = (
            "A row's numbers come in the order of the table's columns, and the command's range LOW..HIGH becomes "
            "bytes: round(255 (x - LOW) / (HIGH - LOW))."
        )
    return [how, "Outputs: the classes in the order of their names, or of `classes` in an .npz file."]


def _listed(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)
