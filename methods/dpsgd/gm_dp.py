"""GM-DP: DP-SGD that clips each layer's gradient by itself.

McMahan et al., "A General Approach to Adding Differential Privacy to Iterative Training Procedures", arXiv:1812.06210,
separate clipping of vector groups; net and settings of DP-SGD, after Tramer and Boneh 2021.

Threat model: the attacker holds the released weights and may know all records but one. Private: images and labels.
Public: the number of records. Released: the student. Unit record, adjacency add-remove, as zero-out (see
:mod:`bench.methods.dpsgd.dp_sgd`): Poisson batches; the gradient of each of m layers, weights and bias together, is
clipped to ``max_grad_norm / sqrt(m)`` in L2, so a record's gradient has at most `max_grad_norm`. With equal bounds the
paper's noise, of deviation ``noise_multiplier * sqrt(m)`` times a layer's bound, is that of DP-SGD, and so is the cost.
"""

from __future__ import annotations

import dataclasses

from bench.core.progress import Stage
from bench.interface import register_method
from bench.methods.dpsgd.dp_sgd import DPSGD
from bench.privacy.dpsgd.dp_sgd import DPSGDRun
from bench.storage.checkpoint import Checkpoint


@register_method("gm-dp")
class GMDP(DPSGD):
    """Poisson batches, per-example clipping layer by layer, Gaussian noise; through the ledger."""

    version = 1
    citation = "McMahan et al. 2018"

    def dp_sgd_run(self, stage: Stage, checkpoint: Checkpoint | None = None) -> DPSGDRun:
        """Return the run's settings for the ledger."""
        return dataclasses.replace(super().dp_sgd_run(stage, checkpoint), by_layer=True)
