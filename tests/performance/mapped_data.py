"""The cost of a large set of image files as it grows: listing, decoding once, opening, a first batch, whole runs.

    python tests/performance/mapped_data.py FOLDER                               # 20,000, 40,000 and 80,000 images
    python tests/performance/mapped_data.py FOLDER --sizes 20000 --runs pate,trpate --teachers 50

Makes a set in ImageNet's layout under FOLDER, which it must be given alone: 1,000 classes, 2,000 test images, JPEGs of
224 x 224 pixels. There are `DISTINCT` different pictures (shapes and noise, encoded once); every file is one of them
with its number behind the end of the picture, so that each has an inode and a content of its own. The set grows in
place: each size is listed and decoded anew. Each step is a process of its own. Memory is the peak over time of what
belongs to the process and its children alone (RssAnon and RssShmem), sampled every 0.1 s: pages of mapped files, which
the system may drop, do not count. Seconds are of the wall; CPU seconds are those of the process and its children, those
in braces of the process alone. The disk's cache is as the step before has left it: warm. A whole run counts from its
start to its end.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from helpers.paths import ROOT

CLASSES, TESTS, DISTINCT = 1_000, 2_000, 200


def pictures() -> list[bytes]:
    """Return JPEGs of a few shapes on noise, 224 x 224 pixels."""
    from PIL import Image, ImageDraw, ImageFilter

    generator = np.random.default_rng(0)
    found = []
    for _ in range(DISTINCT):
        image = Image.fromarray(generator.integers(0, 256, (224, 224, 3), dtype=np.uint8))
        image = image.filter(ImageFilter.GaussianBlur(2))
        draw = ImageDraw.Draw(image)
        for _ in range(5):
            (x0, x1), (y0, y1) = np.sort(generator.integers(0, 224, (2, 2)), axis=1).tolist()
            draw.ellipse((x0, y0, x1, y1), fill=tuple(generator.integers(0, 256, 3).tolist()))
        file = io.BytesIO()
        image.save(file, "JPEG", quality=75)
        found.append(file.getvalue())
    return found


def make_set(folder: Path, size: int) -> None:
    """Add files to the set under `folder` until it has `size` training images and `TESTS` test images."""
    made = pictures()
    for half, count in (("train", size), ("val", TESTS)):
        for number in range(count):
            path = folder / "raw" / "imagenet" / half / f"n{number % CLASSES:08d}" / f"{number // CLASSES:06d}.JPEG"
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(made[number * 7 % DISTINCT] + number.to_bytes(8, "big"))


def known_pixels(shape: tuple[int, int, int]) -> None:
    """Let this process take each file's pixels from the picture that it holds, for a tenth of the cost of decoding."""
    from bench.data import image_map
    from bench.data.image_files import decode

    known = [decode(io.BytesIO(one), shape, "picture") for one in pictures()]

    def looked_up(source: Path, _: tuple[int, int, int]) -> Any:
        return known[int.from_bytes(source.read_bytes()[-8:], "big") * 7 % DISTINCT]

    image_map.decode, image_map.POOL_FROM = looked_up, sys.maxsize  # type: ignore[assignment]


def step(teachers: int, pixels: int, known: bool) -> dict[str, float]:
    """Open the set and read one teacher's first batch in this process; return its CPU seconds by their use."""
    import torch

    if known:
        known_pixels((3, pixels, pixels))
    from bench.core.fetch_progress import silent
    from bench.data.datasets import DATASETS
    from bench.data.spec import LoadRequest
    from bench.data.splits import map_images, materialise, partition, split
    from bench.storage.array_store import data_root
    from bench.training.loop import Batches
    from bench.training.mapped_rows import rows_of

    times = [time.process_time()]
    spec = replace(DATASETS["imagenet"], shape=(3, pixels, pixels))
    loaded = spec.loader(LoadRequest(spec, data_root(), True, silent))
    times.append(time.process_time())
    loaded, parts = map_images(loaded), split(loaded)
    times.append(time.process_time())
    material = materialise(loaded, parts)
    times.append(time.process_time())
    own = partition(len(parts.private), teachers, "performance")[0]
    rows = rows_of(material.private.images, torch.from_numpy(own))
    batch = rows[next(Batches(len(rows), 128, torch.Generator().manual_seed(0)))]
    times.append(time.process_time())
    assert batch.shape == (min(128, len(own)), 3, pixels, pixels)
    names = ("list", "map", "split", "batch")
    return {name: after - before for name, before, after in zip(names, times, times[1:], strict=False)}


def own_memory(root: int) -> int:
    """Return the bytes that belong to process `root` and its descendants alone."""
    children: dict[int, list[int]] = defaultdict(list)
    sizes: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            lines = Path(f"/proc/{name}/status").read_text().splitlines()
        except OSError:
            continue
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        children[int(fields["PPid"])].append(int(name))
        sizes[int(name)] = sum(int(fields.get(kind, "0 kB").split()[0]) for kind in ("RssAnon", "RssShmem"))
    total, waiting = 0, [root]
    while waiting:
        one = waiting.pop()
        total += sizes.get(one, 0)
        waiting += children[one]
    return total * 1024


def watched(command: list[str], folder: Path) -> tuple[str, float, float, float]:
    """Run `command`; return its output, the seconds, the CPU seconds and the peak of its own memory in MB."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = os.environ | {"BENCH_DATA": str(folder), "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
    peak, done = 0, threading.Event()

    def sample() -> None:
        nonlocal peak
        while not done.wait(0.1):
            peak = max(peak, own_memory(process.pid))

    thread = threading.Thread(target=sample)
    thread.start()
    output = process.communicate()[0]
    done.set()
    thread.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{output}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return output, time.perf_counter() - start, cpu, peak / 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sizes", default="20000,40000,80000")
    parser.add_argument("--runs", default="")
    parser.add_argument("--teachers", type=int, default=50)
    parser.add_argument("--set", action="append", default=[], help="a setting of a run, as of `bench run`")
    parser.add_argument("--pixels", type=int, default=224, help="side of the decoded images; runs have 224")
    parser.add_argument("--known-pixels", action="store_true", help="do not decode, where that would take too long")
    parser.add_argument("--step", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        print(json.dumps(step(given.teachers, given.pixels, given.known_pixels)))
        return
    folder = given.folder.resolve()
    again = [
        sys.executable,
        __file__,
        str(folder),
        "--step",
        "--teachers",
        str(given.teachers),
        "--pixels",
        str(given.pixels),
    ]
    for size in map(int, given.sizes.split(",")):
        make_set(folder, size)
        for name in ("first", "again"):
            known = ["--known-pixels"] if given.known_pixels and name == "first" else []
            output, seconds, cpu, peak = watched([*again, *known], folder)
            row: dict[str, Any] = {key: round(value, 3) for key, value in json.loads(output).items()}
            print(f"{size:7d} {name:6s} {row}  {seconds:.1f} s, {cpu:.1f} CPU s, {peak:.0f} MB", flush=True)
        for method in filter(None, given.runs.split(",")):
            chosen = [f"{method}.teachers={given.teachers}", *(one for one in given.set if one.startswith(method))]
            command = [sys.executable, "-m", "bench", "run", "-m", method, "-d", "imagenet", "-p", "tiny", "-e", "10"]
            command += ["-o", str(folder / f"runs-{size}"), "--workers", "1", "-q", *(f"--set={one}" for one in chosen)]
            _, seconds, cpu, peak = watched(command, folder)
            print(f"{size:7d} {method:6s} {seconds:.1f} s, {cpu:.1f} CPU s, {peak:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
