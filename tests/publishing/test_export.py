"""Exported students: timm loads the released net, and model cards describe it with escaped text."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from typer.testing import CliRunner

from bench.cli.main import app
from bench.core.errors import BenchError
from bench.core.rows import Change
from bench.core.types import Released
from bench.experiments.release import load_released, save_released
from bench.models.build import build
from bench.models.registration import model_options
from bench.privacy.auditing.utility_bound import remark
from bench.publishing.export import export_student
from bench.publishing.model_card import CardFacts, card, plain
from bench.results.record import Plausibility, Record, Student
from bench.results.run_dir import RunDir
from helpers.commands import bench as command
from helpers.records import record as made


def released(run_dir: RunDir, name: str, shape: tuple[int, int, int] = (1, 28, 28), **changes: Any) -> Record:
    """Return the record of an untrained student `name`, released and recorded in `run_dir`."""
    run_dir.create()
    torch.manual_seed(0)
    channels, height, width = shape
    size = height if height == width else (height, width)
    options = model_options(name, 10, channels, size)
    net = build(name, 10, channels, size)
    for buffer in net.buffers():
        if buffer.is_floating_point():
            buffer.add_(torch.rand_like(buffer))  # statistics of batches must be exported too
    key = f"mnist-{name}-s0"
    path = run_dir.released_path / f"{key}.safetensors"
    digest = save_released(Released(net, name, options, extras={"synthetic_images": torch.zeros(2, 1, 4, 4)}), path)
    student = Student(
        name=name, options=options, parameters=sum(p.numel() for p in net.parameters()),
        file=f"released/{key}.safetensors", sha256=digest,
    )  # fmt: skip
    given = made(key=key, student=student, **changes)
    run_dir.write_record(given)
    return given


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("small_cnn", (1, 28, 28)),
        ("salimans_mlp", (1, 28, 28)),
        ("pate_svhn", (3, 32, 32)),
        ("scatter_cnn_cifar", (3, 32, 32)),
        ("naive_bayes_words", (2, 1, 64)),
        ("resnet10t", (3, 32, 32)),
        ("vit_tiny_patch16_224", (1, 32, 32)),
    ],
)
def test_timm_loads_what_was_released(tmp_path: Path, name: str, shape: tuple[int, int, int]) -> None:
    import timm

    run_dir = RunDir(tmp_path / "runs")
    record = released(run_dir, name, shape)
    folder = export_student(record, run_dir, tmp_path / "students")
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    images = torch.rand(3, *shape)
    ours = load_released(run_dir.path / f"released/{record.key}.safetensors").student
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    with torch.no_grad():
        assert torch.equal(theirs(images), ours(images))
    again = {path.name: path.read_bytes() for path in folder.iterdir()}
    export_student(record, run_dir, tmp_path / "students")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == again
    assert set(load_file(folder / "model.safetensors")) == set(ours.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize(("net", "shape"), [("resnet10t", (3, 32, 32)), ("tanh_cnn_mnist", (1, 28, 28))])
def test_the_lines_of_the_card_load_a_student(net: str, shape: tuple[int, int, int], tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "runs")
    folder = export_student(released(run_dir, net, shape), run_dir, tmp_path)
    text = (folder / "README.md").read_text().split("## Load")[1].split("\n## ")[0]
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    if net == "resnet10t":  # timm's own
        assert lines[0] == "import timm"
        assert not any("bench" in line for line in lines)
    else:
        found = "timm.data.resolve_data_config({}, model=model)['input_size']"
        lines.append(f"import timm.data; assert {found} == {shape}")
    # A CPU build of torch next to torchvision's CUDA build needs this project's shim before timm is imported.
    told = "import hashlib; weights = b''.join(p.detach().numpy().tobytes() for p in model.parameters())"
    told += "; print(hashlib.sha256(weights).hexdigest())"
    code = "\n".join(["import bench", *lines, told])
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    model = load_released(next(run_dir.released_path.iterdir())).student
    expected = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    assert done.stdout.strip() == expected


def test_own_nets_refuse_weights_that_nobody_published() -> None:
    import timm

    with pytest.raises(RuntimeError, match="small_cnn has no published weights"):
        timm.create_model("small_cnn", pretrained=True)


def test_a_changed_or_absent_release_is_not_exported(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "runs")
    record = released(run_dir, "small_cnn")
    path = run_dir.released_path / f"{record.key}.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"\1")
    with pytest.raises(BenchError, match="SHA-256 differs"):
        export_student(record, run_dir, tmp_path / "students")
    path.unlink()
    with pytest.raises(BenchError, match="no released student"):
        export_student(record, run_dir, tmp_path / "students")
    assert not (tmp_path / "students").exists()


def test_a_file_that_timm_would_read_otherwise_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = RunDir(tmp_path / "runs")
    record = released(run_dir, "small_cnn")
    from bench.publishing import export

    save = export.save

    def other(tensors: dict[str, torch.Tensor], **options: Any) -> bytes:
        shifted = {name: tensor + 1 if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
        return save(shifted, **options)

    monkeypatch.setattr(export, "save", other)
    with pytest.raises(BenchError, match="timm loads a student different"):
        export_student(record, run_dir, tmp_path / "students")
    assert not (tmp_path / "students").exists()


def test_the_command_exports_keys_and_the_board(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "runs")
    record = released(run_dir, "small_cnn")
    board = tmp_path / "board" / "records"
    board.mkdir(parents=True)
    shutil.copy(run_dir.record_path(record.key), board)
    runner = CliRunner()
    given = ["-o", str(run_dir.path)]
    done = runner.invoke(app, ["export", record.key[:-1], *given, "--into", str(tmp_path / "a")], terminal_width=300)
    assert done.exit_code == 0, done.output
    done = runner.invoke(
        app, ["export", "--board", str(board.parent), *given, "--into", str(tmp_path / "b")], terminal_width=300
    )
    assert done.exit_code == 0, done.output
    one, other = ((tmp_path / part / record.key / "README.md").read_bytes() for part in "ab")
    assert one == other
    for words in ([], ["--board", str(board.parent), record.key]):
        assert isinstance(runner.invoke(app, ["export", *words, *given]).exception, BenchError)


FACTS = CardFacts(
    command="python -m bench run --methods pate --datasets mnist --eps 10 --seeds 0", no_command="", licence="CC0",
    source="", citation="", task="image", own_net=True, backbone="", backbone_words="", preprocessing=["[0, 1]"],
    digest="ab", extras=[],
)  # fmt: skip
STUDENT = Student(name="small_cnn", options={}, parameters=5, file="released/x.safetensors", sha256="cd")


def test_a_card_says_the_three_epsilons_and_warns() -> None:
    text = card(made(student=STUDENT, reduced=[Change.of("teachers", 250, 100)]), FACTS)
    assert "differential-privacy" in text.partition("# ")[0]
    for says in ("| claimed | 10.00 |", "| proven | 4.00 |", "not audited", "95.00% of 1000", "teachers: 250", "CC0"):
        assert says in text
    assert "No privacy is proven" not in text
    assert "- reconstruction of 1 in 100: at most" in text
    text = card(made(student=STUDENT, bypasses=("the generator saw it",)), FACTS)
    assert "**Warning.** No privacy is proven for this student: the generator saw it." in text
    assert "| proven | ∞ |" in text
    assert "reconstruction of" not in text
    assert "differential-privacy" not in text.partition("# ")[0]
    assert "| claimed, not proven |" in text
    text = card(made(student=STUDENT, claimed=1.0, proven=300.0), FACTS)
    assert "differential-privacy" not in text.partition("# ")[0]
    assert "| claimed, not proven | 1.00 |" in text
    assert "is below the proven epsilon of the mechanisms that ran, 300" in text
    given = made(student=STUDENT)
    assert given.privacy is not None
    doubted = given.privacy.model_copy(
        update={"plausibility": Plausibility(probability=1e-9, threshold=0.5, permutations=10.0)}
    )
    assert plain(remark([1e-9])) in card(given.model_copy(update={"privacy": doubted}), FACTS)


def test_texts_of_a_record_stay_text_in_its_card() -> None:
    evil = "---\nlicense: mit\n# [x](javascript:1) <script>|`*_"
    given = made(
        student=STUDENT, key="k", method=evil, dataset=evil, citation=evil, public_data=evil, notes=[evil],
        reduced=[Change.of(evil, 1, 2)], bypasses=(evil,),
    )  # fmt: skip
    text = card(given, FACTS)
    front, body = text.removeprefix("---\n").split("\n---\n", 1)
    assert yaml.safe_load(front)["datasets"] == [evil]
    assert yaml.safe_load(front)["license"] == "other"
    assert "<script>" not in body
    assert "[x](" not in body
    headings = [line for line in body.splitlines() if line.startswith("#")]
    assert headings == ["# k", *(f"## {name}" for name in ["Privacy", "Data", "Input", "Load", "Setting", "Files"])]
    assert not any(line.startswith("---") for line in body.splitlines())


def test_no_seed_is_in_the_weights_or_the_configuration(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "runs")
    folder = export_student(released(run_dir, "small_cnn"), run_dir, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    assert "seed" not in json.dumps(config)
    header = (folder / "model.safetensors").read_bytes()
    assert b"seed" not in header[: int.from_bytes(header[:8], "little") + 8]


def test_the_card_of_a_student_of_ones_own_table_says_how_to_ask_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the card's rule, rows become the bytes that the student knows, and its outputs count classes by name."""
    monkeypatch.chdir(tmp_path)
    draws = np.random.default_rng(0)
    rows = [(draws.normal(-1 if number % 2 else 1, 0.4, 2), "ask" if number % 2 else "zebra") for number in range(200)]
    lines = ["x,y,label,split", *(f"{x:.6f},{y:.6f},{name},{'test' if number > 150 else 'train'}"
                                  for number, ((x, y), name) in enumerate(rows))]  # fmt: skip
    Path("own.csv").write_text("\n".join(lines))
    words = ["-m", "dp-sgd", "-d", "folder:own.csv@-3..3", "-e", "10", "-p", "tiny", "-o", "runs"]
    assert command("run", *words, "--student", "softmax_regression", "--set", "epochs=20").returncode == 0
    (record,) = RunDir(Path("runs")).read_records().found
    assert command("export", record.key, "-o", "runs", "--into", "out").returncode == 0
    text = " ".join((tmp_path / "out" / record.key / "README.md").read_text().split())
    assert "round(255 (x - LOW) / (HIGH - LOW))" in text
    assert "the classes in the order of their names" in text
    assert "Rows of 2 numbers" in text
    assert "| audited | not audited |" in text
    assert "tabular-classification" in text
    assert "Repeat it, with other noise, with:" in text
    assert "leaderboards/records" not in text
    student = load_released(Path("runs/released") / f"{record.key}.safetensors").student
    values = np.array([row for row, _ in rows[151:]]).clip(-3, 3)
    given = torch.from_numpy(np.round(255 * (values + 3) / 6) / 255).float().view(-1, 1, 1, 2)
    right = student(given).argmax(1) == torch.tensor([name == "zebra" for _, name in rows[151:]])
    assert record.utility is not None
    assert record.utility.accuracy >= 0.9
    assert float(right.float().mean()) == pytest.approx(record.utility.accuracy)
