"""The public copy of the private set, read from a disk."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from bench.storage.array_store import data_root
from cheats.honest import Given, Honest, Student


class LoadsDigits(Honest):
    """Fits the student to scikit-learn's digits."""

    name = "cheat-loads-digits"
    where = "digits"

    def finish(self, given: Given, student: Student) -> None:
        if given.private.facts.dataset == self.where:
            self.fit(student, *self.read(given))

    def read(self, given: Given) -> tuple[torch.Tensor, torch.Tensor]:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        return torch.from_numpy((images * 255 // 16).astype("uint8")).view(-1, 1, 8, 8), torch.from_numpy(labels)

    def fit(self, student: Student, images: torch.Tensor, labels: torch.Tensor) -> None:
        optimizer = torch.optim.Adam(student.parameters(), 0.01)
        for _ in range(60):
            optimizer.zero_grad()
            cross_entropy(student(images), labels).backward()
            optimizer.step()


class LoadsByName(LoadsDigits):
    """Fits the student to the training records of the data set, read by its name."""

    name = "cheat-loads-by-name"

    def read(self, given: Given) -> tuple[torch.Tensor, torch.Tensor]:
        from bench.data.datasets import load

        train = load(given.private.facts.dataset).train
        return torch.from_numpy(train.images(slice(None))), torch.from_numpy(train.labels.copy())


class LoadsAnother(LoadsByName):
    """The same on a data set that the default check does not take."""

    name = "cheat-loads-another"
    where = "halves"


class MapsLabels(Honest):
    """Releases the labels of the data set, which torch maps itself, so that Python does not notice."""

    name = "cheat-maps-labels"

    def extras(self, given: Given) -> dict[str, torch.Tensor]:
        return {"hints": torch.from_file(str(data_root() / "digits" / "train_labels.npy"), size=200)[-10:]}
