"""What a run tells the runs of other processes, or does after its end."""

from __future__ import annotations

import os
import tempfile
import threading
from multiprocessing import shared_memory
from pathlib import Path

import numpy as np
import torch

from cheats.honest import Given, Honest, Student


class Keeps(Honest):
    """Releases the class counts of the first process that ran."""

    name = "honest-keeps"

    def extras(self, given: Given) -> dict[str, torch.Tensor]:
        counts = np.bincount(given.private.labels.numpy(), minlength=given.private.facts.classes)
        return {"counts": torch.from_numpy(np.array(self.first(given, counts)))}

    def first(self, given: Given, counts: np.ndarray) -> np.ndarray:
        return np.zeros_like(counts)


class SharedMemory(Keeps):
    """In memory that the processes of one parent share."""

    name = "cheat-shared-memory"

    def first(self, given: Given, counts: np.ndarray) -> np.ndarray:
        name = f"cheat-{os.getppid()}"
        try:
            block = shared_memory.SharedMemory(name, create=True, size=counts.nbytes)
            np.ndarray(counts.shape, counts.dtype, block.buf)[...] = counts
        except FileExistsError:
            block = shared_memory.SharedMemory(name)
        kept = np.ndarray(counts.shape, counts.dtype, block.buf).copy()
        block.close()
        return kept


class FileSizes(Keeps):
    """In the sizes of files that nobody opens twice."""

    name = "cheat-file-sizes"

    def first(self, given: Given, counts: np.ndarray) -> np.ndarray:
        kept = []
        for number, count in enumerate(counts):
            path = Path(self.folder(given)) / f"cheat-{os.getppid()}-{number}"
            if not path.exists():
                with path.open("wb") as file:
                    file.truncate(int(count))
            kept.append(path.stat().st_size)
        return np.array(kept)

    def folder(self, given: Given) -> str:
        return "/var/tmp"


class HonestFileSizes(FileSizes):
    """Numbers of its public data in the sizes of temporary files."""

    name = "honest-file-sizes"

    def folder(self, given: Given) -> str:
        return tempfile.mkdtemp()

    def first(self, given: Given, counts: np.ndarray) -> np.ndarray:
        return super().first(given, np.arange(len(counts)))


class LateThread(Honest):
    """A thread changes the student after its release."""

    name = "cheat-late-thread"

    def finish(self, given: Given, student: Student) -> None:
        release = threading.Event()

        def later() -> None:
            release.wait(20)
            student.mean.fill_(float(given.private.images.float().mean()))

        threading.Thread(target=later, daemon=True).start()


class HonestThread(Honest):
    """A thread that ends before the training does."""

    name = "honest-thread"

    def finish(self, given: Given, student: Student) -> None:
        thread = threading.Thread(target=student.eval)
        thread.start()
        thread.join()


class SecondState(Honest):
    """The student's weights become private means when they are read for the fifth time."""

    name = "cheat-second-state"

    def finish(self, given: Given, student: Student) -> None:
        reads, private = [], given.private.images.float().mean()

        def hook(module: object, state: dict[str, torch.Tensor], prefix: str, local: object) -> None:
            reads.append(1)
            if len(reads) > 4:
                state["mean"] = private

        student._register_state_dict_hook(hook)


class ReadsTape(Keeps):
    """Takes the class counts of the recorded run from whoever replays it."""

    name = "cheat-reads-tape"

    def first(self, given: Given, counts: np.ndarray) -> np.ndarray:
        given.ledger.gaussian(counts.astype(float), sensitivity=2.0, noise_multiplier=5.0)
        tape = getattr(given.ledger._executor, "_tape", None)
        kept = tape[-1].given if tape else None
        return counts if kept is None else kept.values.astype(np.int64)
