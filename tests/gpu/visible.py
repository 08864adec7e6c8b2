"""A method whose records say which GPU their cell saw. Cells wait, so that no worker takes those of two GPUs."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from bench.interface import Context, Ledger, PrivateData, PublicData, Released, register_method
from bench.methods.nonprivate import NonPrivate, NonPrivateConfig


@dataclass(frozen=True)
class VisibleConfig(NonPrivateConfig):
    """Settings of the baseline, in a class of its own."""


@register_method("visible-gpus")
class VisibleGPUs(NonPrivate):
    """The baseline without privacy."""

    Config = VisibleConfig

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        import torch

        count = torch.cuda.device_count() if context.device.type == "cuda" else 0
        alone = f"GPU {os.environ.get('CUDA_VISIBLE_DEVICES', 'any')} alone"
        context.note(alone if count == 1 else f"{count} GPUs" if count else "no GPU")
        if count:
            time.sleep(10)
        return super().train_student(private, public, ledger, context)
