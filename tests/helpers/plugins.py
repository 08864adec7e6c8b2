"""The text of a small honest plug-in, to be put into files or packages, edited, rerun and published."""

from __future__ import annotations

from pathlib import Path

NAME = "noisy-means"
SOURCE = '''"""Noisy class means as the weights of a linear classifier."""

from dataclasses import dataclass, replace

import torch

from bench.interface import Claim, Gaussian, Method, Released, make_student, proven, register_method, setting


@dataclass(frozen=True)
class Config:
    noise: float = setting(1.0, "calibrated to the budget")


@register_method("noisy-means")
class NoisyMeans(Method[Config]):
    """A linear classifier."""

    citation = "none"

    @classmethod
    def presets(cls, facts):
        return {"quick": {}, "tiny": {}}

    def calibrate(self, budget):
        noise = 0.1
        while proven([Gaussian(noise)], budget.delta).epsilon > budget.epsilon:
            noise *= 1.05
        return replace(self.config, noise=noise)

    def claimed(self, delta):
        return Claim(proven([Gaussian(self.config.noise)], delta).epsilon, delta, "ours")

    def charges(self):
        return [Gaussian(self.config.noise)]

    def train_student(self, private, public, ledger, context):
        images = private.images.float().flatten(1) / 127.5 - 1
        images = images / images.norm(dim=1, keepdim=True).clamp(min=1)
        sums = torch.zeros(private.facts.classes, images.shape[1]).index_add_(0, private.labels, images)
        # A replaced record moves one row by norm 2, or two rows by norm 1 each.
        told = ledger.gaussian(sums.numpy(), sensitivity=2.0, noise_multiplier=self.config.noise)
        student, options = make_student("softmax_regression", private.facts, context.streams.torch("start"))
        weight = torch.from_numpy(told).float()
        student.get_classifier().weight.data.copy_(weight - weight.mean(0))
        return Released(student, "softmax_regression", options)
'''
WORSE = ("weight - weight.mean(0)", "weight.mean(0) - weight")
"""An edit that turns the classifier round."""
STOPPING = (
    ("Gaussian(noise)", "Gaussian(noise, 4)"),
    ("Gaussian(self.config.noise)", "Gaussian(self.config.noise, 4)"),
    (
        "        told = ledger.gaussian(sums.numpy(), sensitivity=2.0, noise_multiplier=self.config.noise)\n",
        """        ledger.at_most(self.charges())
        told = 0 * sums.numpy()
        for _ in range(4):
            told = told + ledger.gaussian(sums.numpy(), sensitivity=2.0, noise_multiplier=self.config.noise)
            if abs(told).max() > 1:
                break
""",
    ),
)
"""Edits that stop early by the answers: the first is enough on most data."""
ASKED = "ledger.gaussian(sums.numpy(), sensitivity=2.0, noise_multiplier=self.config.noise)"
LEAK = (ASKED, f"sums.numpy() + 0 * {ASKED}")
"""An edit that releases the sums as they are."""
UNSTEADY = ("weight = torch.from_numpy(told).float()", "weight = torch.from_numpy(told).float() + os.getpid() * 1e-9")
"""An edit that gives another student in another process."""


def source(*edits: tuple[str, str]) -> str:
    text = SOURCE
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    return text.replace("import torch\n", "import os\n\nimport torch\n", 1) if UNSTEADY in edits else text


def install(folder: Path, text: str, version: str = "1.0") -> Path:
    """Write the package ``noisy_means`` of the distribution ``noisy-means-plugin`` as pip would; return `folder`."""
    package, about = folder / "noisy_means", folder / f"noisy_means_plugin-{version}.dist-info"
    package.mkdir(parents=True, exist_ok=True)
    about.mkdir(exist_ok=True)
    (package / "__init__.py").write_text("")
    (package / "method.py").write_text(text)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: noisy-means-plugin\nVersion: {version}\n")
    (about / "entry_points.txt").write_text("[bench.methods]\nnoisy-means = noisy_means.method\n")
    (about / "RECORD").write_text("noisy_means/__init__.py,,\nnoisy_means/method.py,,\n")
    return folder
