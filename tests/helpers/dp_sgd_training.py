"""A small training by DP-SGD, and the bytes of a net's weights."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from bench.core.types import Adjacency, PrivacyUnit
from bench.privacy.dpsgd.clipping import Flat
from bench.privacy.dpsgd.dp_sgd import DPSGDRun
from helpers.ledgers import seeded_ledger


def trained(model=None, loss=None, optimizer=None, steps: int = 6, records: int = 40, **changes: object):
    """Train `model` (a small dense net) on random images, and return it."""
    torch.manual_seed(0)
    model = model or torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(records, 1, 2, 2, generator=generator)
    labels = torch.randint(0, 3, (records,), generator=generator)
    given = {
        "noise_multiplier": 1.0, "clipping": Flat(0.5), "expected_batch_size": records // 2, "steps": steps,
        "records": records,
    }  # fmt: skip
    run = DPSGDRun(optimizer or (lambda p: torch.optim.SGD(p, lr=0.1)), loss or cross_entropy, **{**given, **changes})
    book = seeded_ledger(PrivacyUnit.RECORD, Adjacency.ADD_REMOVE, np.random.default_rng(0))
    book.dp_sgd(model, images, labels, run)
    return model


def weights(model) -> list[bytes]:
    """Return the bytes of each tensor of the net's state."""
    return [value.detach().numpy().tobytes() for value in model.state_dict().values()]
