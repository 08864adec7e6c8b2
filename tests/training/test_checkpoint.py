"""A stage that was stopped and resumed gives byte-identical results."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bench.attacks.inversion_network import Decoder, train_decoder
from bench.attacks.plg_mi import ProjectionDiscriminator, train_conditional_gan
from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams, seeded
from bench.core.types import Adjacency, Budget, PrivacyUnit
from bench.interface.registry import METHODS
from bench.methods.distillation.tangent_normal import StudentSettings, Triples, train_tangent_normal, train_vae
from bench.models.autoencoders import VAE
from bench.models.build import build
from bench.models.generators import DataFreeGenerator, DenseGenerator
from bench.privacy.mechanisms.executors import Noisy
from bench.privacy.mechanisms.ledger import Ledger
from bench.privacy.mechanisms.noise import Noise, SeededNoise
from bench.storage.cache import Cache
from bench.storage.checkpoint import Checkpoint
from bench.training.context import Context
from bench.training.data_free import GeneratorSettings, train_generator
from bench.training.gan import GanGenerator, GanSettings, train_gan
from bench.training.improved_gan import ImprovedGANSettings, train_improved_gan
from bench.training.loop import FitSettings, fit
from bench.training.pretraining import LazyImages
from bench.training.self_training import SelfTrainingSettings, train_self_trained
from helpers.ledgers import seeded_ledger
from helpers.small_sets import SMALL, private_pair, public_set
from helpers.stages import CLASSES, FITS, Stage, Stopped, blobs, check_resumes, dropout_net, everything, net, seed

pytestmark = pytest.mark.usefixtures("checkpoints_at_every_step")


@pytest.mark.parametrize("make", [dropout_net, net])
@pytest.mark.parametrize("name", FITS)
def test_fit_goes_on_to_the_byte(name: str, make: Callable[[], nn.Module], tmp_path: Path) -> None:
    images, labels = blobs(30)

    def train(stage: Stage, saved: Checkpoint | None) -> nn.Module:
        return fit(make(), images, labels, FITS[name], seed(1), stage=stage, checkpoint=saved)

    check_resumes(train, tmp_path)


def test_improved_gan_goes_on_to_the_byte(tmp_path: Path) -> None:
    (images, labels), (pool, _) = blobs(12), blobs(50, start=1)
    settings = ImprovedGANSettings(epochs=6, batch_size=20, start_images=20)

    def train(stage: Stage, saved: Checkpoint | None) -> nn.Module:
        student = net("salimans_mlp", widths=(16, 8))
        with seeded(seed(0)):
            generator = DenseGenerator(1, 8, 8, units=16)
        order = seed(1)
        train_improved_gan(student, generator, images, labels, pool, settings, order, stage=stage, checkpoint=saved)
        return nn.ModuleList([student, generator])

    check_resumes(train, tmp_path)


@pytest.mark.parametrize("graph_below", [0, 20])
def test_self_training_goes_on_within_each_phase(graph_below: int, tmp_path: Path) -> None:
    (images, labels), (pool, _) = blobs(12), blobs(30, start=1)
    short = FitSettings(steps=10, batch_size=6, shift=1)
    settings = SelfTrainingSettings(short, short, committee=2, views=2, graph_below=graph_below)

    def train(stage: Stage, saved: Checkpoint | None) -> nn.Module:
        start = seed(2)

        def make() -> nn.Module:
            with seeded(start):
                return build("small_cnn", CLASSES, 1, 8, width=4)

        return train_self_trained(make, images, labels, pool, CLASSES, settings, seed(1), stage=stage, checkpoint=saved)

    check_resumes(train, tmp_path, stops=6)


def test_self_training_takes_nothing_from_a_run_with_other_answers(tmp_path: Path) -> None:
    (images, labels), (pool, _) = blobs(12), blobs(30, start=1)
    few = FitSettings(steps=4, batch_size=6)
    settings = SelfTrainingSettings(few, few, committee=2, graph_below=0)
    said: list[str] = []

    def train(answers: Tensor, stop: int | None, root: Path | None) -> nn.Module | None:
        with contextlib.suppress(Stopped), Checkpoint(Cache(root, {}, said.append), "stage", {}) as saved:
            return train_self_trained(
                net, images, answers, pool, CLASSES, settings, seed(1), stage=Stage(stop), checkpoint=saved
            )
        return None

    other = (labels + 1) % CLASSES
    assert train(labels, 10, tmp_path) is None  # in the last phase: the committee's beliefs are saved
    made, expected = train(other, None, tmp_path), train(other, None, None)
    assert made is not None
    assert expected is not None
    assert everything(made) == everything(expected)
    assert len(said) == 1
    assert "other inputs" in said[0]


def test_fit_goes_on_with_images_that_no_memory_holds(tmp_path: Path) -> None:
    images, labels = blobs(30)
    records: Any = SimpleNamespace(shape=(1, 8, 8), images=lambda which: images[torch.from_numpy(which)].numpy())
    lazy: Any = LazyImages(records, np.arange(30))

    def train(stage: Stage, saved: Checkpoint | None) -> nn.Module:
        return fit(net(), lazy, labels, FITS["momentum"], seed(1), stage=stage, checkpoint=saved)

    check_resumes(train, tmp_path)


@pytest.mark.parametrize("kind", ["acgan", "wgan", "infogan"])
def test_gans_go_on_to_the_byte(kind: Any, tmp_path: Path) -> None:
    images, labels = blobs(13)
    settings = GanSettings(steps=6, batch_size=4, width=4, critic_steps=2)

    def train(stage: Stage, saved: Checkpoint | None) -> nn.Module:
        return train_gan(kind, images, labels, CLASSES, settings, seed(1), stage=stage, checkpoint=saved)

    check_resumes(train, tmp_path, stops=2)


def test_autoencoder_goes_on_to_the_byte(tmp_path: Path) -> None:
    images, _ = blobs(20)

    def train(stage: Stage, saved: Checkpoint | None) -> nn.Module:
        with seeded(seed(0)):
            vae = VAE(1, 8, 8, latent=4, units=4)
        return train_vae(vae, images, 8, 6, 0.01, seed(1), stage=stage, checkpoint=saved)

    check_resumes(train, tmp_path)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_smooth_student_goes_on_to_the_byte(optimizer: Any, tmp_path: Path) -> None:
    images, labels = blobs(20)
    triples = Triples(*(blobs(15, start)[0] for start in (1, 2, 3)))
    settings = StudentSettings(8, batch_size=6, lr=0.01, optimizer=optimizer, shift=1)

    def train(stage: Stage, saved: Checkpoint | None) -> nn.Module:
        return train_tangent_normal(net(), images, labels, triples, settings, seed(1), stage=stage, checkpoint=saved)

    check_resumes(train, tmp_path)


def test_data_free_generator_goes_on_to_the_byte(tmp_path: Path) -> None:
    settings = GeneratorSettings(steps=9, batch_size=6, lr=0.05, decay_steps=2, shift=1)

    def train(stage: Stage, saved: Checkpoint | None) -> nn.Module:
        with seeded(seed(0)):
            generator = DataFreeGenerator(1, 8, 8, noise_size=4, units=4)
        return train_generator(generator, net(), settings, seed(1), stage=stage, checkpoint=saved)

    check_resumes(train, tmp_path)


def test_conditional_gan_goes_on_to_the_byte_and_counts_all_images(tmp_path: Path) -> None:
    images, labels = blobs(20)
    student = net(width=4).eval()
    counted: list[int] = []

    def train(stage: Stage, saved: Checkpoint | None) -> nn.Module:
        with seeded(seed(0)):
            pair = GanGenerator((1, 8, 8), 4, CLASSES, width=4), ProjectionDiscriminator((1, 8, 8), CLASSES, 4)
        counted.clear()
        train_conditional_gan(
            *(part.train() for part in pair), images, labels, student, seed(1), steps=6, batch_size=4, critic_steps=2,
            rate=1e-3, alpha=0.2, flips=False, count=counted.append, stage=stage, checkpoint=saved,
        )  # fmt: skip
        return nn.ModuleList(pair)

    check_resumes(train, tmp_path, stops=2)
    assert sum(counted) == 24


def test_decoder_goes_on_from_the_last_epoch(tmp_path: Path) -> None:
    images, _ = blobs(20)
    codes = torch.rand((20, CLASSES), generator=seed(3))

    def train(stage: Stage, saved: Checkpoint | None) -> nn.Module:
        with seeded(seed(0)):
            decoder = Decoder(CLASSES, (1, 8, 8), 4)
        return train_decoder(
            decoder, codes, images, seed(1), epochs=7, batch_size=16, rate=0.01, validation=0.2,
            device=torch.device("cpu"), stage=stage, checkpoint=saved,
        )  # fmt: skip

    check_resumes(train, tmp_path, stops=2)


class Watched(Progress):
    """A progress display that counts the steps of all stages and stops the run at one of them."""

    def __init__(self, stop: int | None = None) -> None:
        self.all = Stage(stop)

    @contextmanager
    def stage(self, name: str, total: int, seconds: float = math.inf) -> Iterator[Stage]:
        yield self.all


class Unrepeatable(SeededNoise):
    """Noise that cannot be redrawn; counts its draws."""

    exact = True

    def __init__(self) -> None:
        super().__init__(np.random.default_rng())
        self.draws = 0

    def gaussian(self, shape: tuple[int, ...], std: float) -> Any:
        self.draws += 1
        return super().gaussian(shape, std)


def run_method(
    name: str, changes: dict[str, Any], root: Path | None, progress: Progress, noise: Noise | None = None
) -> tuple[list[bytes], Ledger]:
    """Run a method with its tiny preset, as a separate process would, and return all it releases."""
    method = METHODS.get(name)
    config = method.Config(**{**method.presets(SMALL)["tiny"], **changes})
    config = method(config, SMALL).calibrate(Budget(10.0, 1e-5))
    streams = Streams(0)
    context = Context(torch.device("cpu"), streams, Cache(root, {}), progress, cell="of this test")
    ledger = Ledger(method.unit, method.adjacency, Noisy(noise or SeededNoise(streams.numpy("noise"))))
    torch.manual_seed(streams.integer("global"))
    released = method(config, private_pair()[0].facts).train_student(private_pair()[0], public_set(), ledger, context)
    found = everything(released.student) + [value.numpy().tobytes() for value in released.extras.values()]
    return found + ([] if released.generator is None else everything(released.generator)), ledger


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("dp-sgd", {"epochs": 2.0, "batch_size": 32}),
        pytest.param("rgp", {"epochs": 2.0}, marks=pytest.mark.slow),
        ("gep", {}),
        ("dpsd", {"iterations": 8, "amount": 64}),
        ("dpsd", {"iterations": 6, "eq3": "batch-mean", "optimizer": "sgd"}),
        pytest.param("dpsd-label", {"iterations": 6, "pool_steps": 60}, marks=pytest.mark.slow),
        ("dpsd-t", {"iterations": 6}),
        ("fed-dpsd", {"iterations": 6}),
        pytest.param("dpsd-sound", {"teachers": 3, "held_back": 0.2}, marks=pytest.mark.slow),
        ("dgd", {"vae_steps": 8, "student_steps": 10, "teachers": 3}),
        pytest.param("dgd", {"images": "acgan", "generator_steps": 5, "teachers": 3}, marks=pytest.mark.slow),
        ("pate", {"student_training": "improved-gan", "student": "salimans_mlp", "student_epochs": 8}),
        pytest.param("dp-merf", {}, marks=pytest.mark.slow),
        ("dp-kernel", {"iterations": 8}),
        pytest.param("p3gm-sound", {}, marks=pytest.mark.slow),
        ("nonprivate", {"epochs": 3.0}),
        ("fedavg", {"rounds": 3}),
        ("fed-dafl", {"epochs": 5}),
        ("dense", {"epochs": 4}),
        pytest.param("fed-adi", {"epochs": 4}, marks=pytest.mark.slow),
    ],
)
def test_methods_go_on_to_the_byte_and_charge_once(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    whole = Watched()
    expected, paid = run_method(name, changes, None, whole)
    last = whole.all.steps - 1
    for moment in (random.Random(name).randrange(2, last), last):
        with contextlib.suppress(Stopped):
            run_method(name, changes, tmp_path, Watched(moment))
    found, ledger = run_method(name, changes, tmp_path, Watched())
    assert found == expected
    assert ledger.events == paid.events
    assert (ledger.asked, ledger.answered) == (paid.asked, paid.answered)
    assert not list(tmp_path.glob("checkpoint-*"))


def test_answers_that_cannot_be_drawn_again_are_kept(tmp_path: Path) -> None:
    changes = {"iterations": 6}
    for stop in (3, 5):
        noise = Unrepeatable()
        with pytest.raises(Stopped):
            run_method("dpsd", changes, tmp_path, Watched(stop), noise)
    # The second run resumed, reached the fifth iteration and was stopped before its checkpoint.
    noise = Unrepeatable()
    _, ledger = run_method("dpsd", changes, tmp_path, Watched(), noise)
    assert noise.draws == 6 - 4
    _, paid = run_method("dpsd", changes, tmp_path, Watched(), Unrepeatable())
    assert ledger.events == paid.events
    assert len(ledger.events) == 6


def ask_everything(ledger: Ledger, labels: Any, value: float, outside: Any) -> list[Any]:
    sets = np.array([[1, 3, 5], [0, 2, 4], [6, 7, 8]])
    given = np.full((3, 7), value)
    return [
        ledger.gaussian(given, sensitivity=1.0, noise_multiplier=2.0),
        ledger.laplace(given[0], sensitivity=1.0, noise_multiplier=2.0),
        ledger.top_k_randomized_response(labels, sets, epsilon=1.0, classes=10, outside=outside),
        ledger.randomized_response(labels, epsilon=1.0, classes=10),
        ledger.gaussian(given, sensitivity=1.0, noise_multiplier=2.0),
    ]


@pytest.mark.parametrize("outside", ["set", "printed"])
def test_charging_again_moves_the_noise_on_and_tells_nothing(outside: str) -> None:
    def book() -> Ledger:
        return seeded_ledger(PrivacyUnit.LABEL, Adjacency.REPLACE, np.random.default_rng(0))

    ledger, resumed, other = book(), book(), book()
    answers = ask_everything(ledger, np.array([3, 9, 6]), 9.0, outside)
    with resumed.charging_again():
        told = ask_everything(resumed, np.array([3, 9, 6]), 9.0, outside)
    with other.charging_again():
        again = ask_everything(other, np.array([1, 1, 1]), 0.0, outside)
    for one, two in zip(told, again, strict=True):
        np.testing.assert_array_equal(one, two)
    assert resumed.events == ledger.events
    # As if all queries had been answered: the next answers have the same noise.
    for one, two in zip(
        *(ask_everything(b, np.array([5, 5, 5]), 100.0, outside) for b in (ledger, resumed)), strict=True
    ):
        np.testing.assert_array_equal(one, two)
    assert (answers[0] != told[0]).all()


def test_votes_cannot_be_charged_again() -> None:
    ledger = seeded_ledger(PrivacyUnit.RECORD, Adjacency.REPLACE, np.random.default_rng(0))
    with ledger.charging_again(), pytest.raises(BenchError, match="votes"):
        ledger.noisy_max(np.array([[3, 0]]), teachers=3, gamma=0.1)
    assert ledger.events == ()
    assert ledger.asked == 0


@pytest.mark.slow
def test_run_that_is_killed_in_its_stages_ends_as_one_that_was_not(tmp_path: Path) -> None:
    program = "import bench.storage.checkpoint as c; c.SECONDS = 0.0; from bench.cli.main import main; main()"
    grid = ["--datasets", "digits", "--eps", "10", "--preset", "tiny"]
    changes = {"dp-sgd": ["--set", "epochs=3"], "dpsd": ["--set", "iterations=20"]}
    both = ["--methods", "dp-sgd,dpsd", *changes["dp-sgd"], *changes["dpsd"]]

    def start(out: Path, options: list[str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", program, "run", *grid, *options, "--out", str(out)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)

    def finish(out: Path, options: list[str]) -> tuple[dict[str, dict[str, Any]], str]:
        process = start(out, options)
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said.decode()
        records = {path.name: json.loads(path.read_text()) for path in (out / "records").glob("*.json")}
        for record in records.values():
            del record["provenance"]
        return records, said.decode()

    out = tmp_path / "killed"
    for kind in ("student", "alternation"):
        process = start(out, both)
        for _ in range(6000):
            if list(out.glob(f"cache/checkpoint-{kind}-*.safetensors")) or process.poll() is not None:
                break
            time.sleep(0.01)
        time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        assert list(out.glob(f"cache/checkpoint-{kind}-*.safetensors"))
    found, said = finish(out, both)
    assert len(found) == 2
    for name, record in found.items():
        method = record["cell"]["method"]
        again = ["--methods", method, *changes[method], "--noise-salt", record["noise_salt"]]
        assert finish(tmp_path / method, again)[0] == {name: record}
    assert not list(out.glob("noise/*"))
    assert "the stage alternation resumes where an earlier run was stopped" in said
    assert not list(out.glob("cache/checkpoint-*"))
