"""LP-1ST and LP-2ST: labels by randomised response, in one stage or in two, the second with the first's net as prior.

Ghazi, Golowich, Kumar, Manurangsi, Zhang, "Deep Learning with Label Differential Privacy", NeurIPS 2021
(arXiv:2102.06062), Algorithm 3 with one and two stages. A fixed rule divides the records. Labels of the first part go
through randomised response over all classes and train a net. Its predictions for the second part's images are the prior
of RRWithPrior: randomised response over the k likeliest classes, with k maximising the probability of the true label.
The net then trains on all noisy labels; with the loss ``cross-entropy``, as in the authors' code, the first part's
labels outside the net's k likeliest classes are dropped, k being the second part's mean (the loss ``likelihood``
weights them instead).

The authors' code (google-research/label-dp, ``rr_with_prior`` in ``label_dp/train.py``) divides the weight of k classes
by ``1 + (k - 2) e^-eps``, Algorithm 2 by ``1 + (k - 1) e^-eps``, so the code keeps too few classes. That costs
accuracy, not privacy, as k depends only on the prior. Algorithm 2 is implemented here.

Threat model: the attacker holds the student and the noisy labels, all images and all labels but one. Private: labels.
Public: the images of the private records. Released: the student and the noisy labels. Unit label, adjacency replace,
sensitivity any label: every label is answered once, so both stages cost as much as one (parallel composition).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from bench.interface import (
    Claim,
    Context,
    Facts,
    Ledger,
    PrivateData,
    PublicData,
    Released,
    make_student,
    partition,
    predict,
    register_method,
    setting,
)
from bench.methods.label.family import Floats, Ints, LabelMethod, NoisyLabelConfig, learn
from bench.privacy.accounting.claims import label_response
from bench.privacy.events.events import PriorRandomizedResponse
from bench.privacy.mechanisms.responses import likely_sets, prior_likelihood


@dataclass(frozen=True)
class LP2STConfig(NoisyLabelConfig):
    """Settings of two stages: the published code's at epsilon 1; at 2 to 8 it has others, and two mixups."""

    first: float = setting(
        0.8, "Ghazi et al. 2021, published code: share of the first stage, CIFAR-10 at epsilon 1", gt=0, lt=1
    )
    temperature: float = setting(0.6, "Ghazi et al. 2021, published code: CIFAR-10 at epsilon 1", gt=0)


@register_method("lp-1st")
class LP1ST(LabelMethod):
    """One stage: randomised response over all classes."""

    config: NoisyLabelConfig
    citation = "Ghazi et al. 2021"
    fewer: ClassVar[Mapping[str, Any]] = {}
    """The quick preset's further changes if records are many."""

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        found = {name: {**changes, "loss": "likelihood"} for name, changes in super().presets(facts).items()}
        if facts.private_records > 10_000:
            found["quick"] |= cls.fewer
        return found

    def claimed(self, delta: float) -> Claim:
        return label_response(self.config.epsilon, delta)

    def charges(self) -> list[PriorRandomizedResponse]:
        return [PriorRandomizedResponse(self.config.epsilon, self.facts.classes, answers=self.facts.private_records)]

    def stages(self, records: int) -> list[Ints]:
        """Return the positions of the records whose labels each stage uses."""
        return [np.arange(records)]

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        """Release the labels stage by stage, and train the net on all of them after each."""
        classes, count, labels = private.facts.classes, len(private), private.labels.numpy()
        student, options = make_student(self.config.student, private.facts, context.streams.torch("student/start"))
        noisy, law = np.full(count, -1), np.ones((count, classes))
        for number, rows in enumerate(self.stages(count)):
            even = np.full((len(rows), classes), 1 / classes)
            prior = self.prior(student, private.images[rows], context) if number else even
            noisy[rows] = ledger.prior_randomized_response(labels, prior, rows=rows, epsilon=self.config.epsilon)
            law[rows] = prior_likelihood(noisy[rows], prior, self.config.epsilon)
            seen = np.flatnonzero(noisy >= 0)
            if number and self.config.loss == "cross-entropy":
                seen = self.likely(student, private, noisy, rows, prior, context)
            name = f"stage {number + 1}"
            learn(student, private.images[seen], law[seen], self.config, context, name, labels=noisy[seen])
        return Released(student, self.config.student, options, extras={"noisy_labels": torch.from_numpy(noisy)})

    def prior(self, net: nn.Module, images: Any, context: Context) -> Floats:
        """Return `net`'s class probabilities for `images`, (n, classes)."""
        logits = predict(net, images, device=context.device).double()
        return (logits / getattr(self.config, "temperature", 1.0)).softmax(1).numpy()

    def likely(
        self, net: nn.Module, private: PrivateData, noisy: Ints, rows: Ints, prior: Floats, context: Context
    ) -> Ints:
        """Return `rows` plus earlier rows whose noisy label is among `net`'s k likeliest classes."""
        k = int(likely_sets(prior, self.config.epsilon)[1].mean())
        earlier = np.setdiff1d(np.flatnonzero(noisy >= 0), rows)
        before = self.prior(net, private.images[earlier], context)
        inside = (np.argsort(-before, axis=1)[:, :k] == noisy[earlier][:, None]).any(axis=1)
        return np.sort(np.concatenate([rows, earlier[inside]]))


@register_method("lp-2st")
class LP2ST(LP1ST):
    """Two stages: the net of the first is the prior of the second."""

    config: LP2STConfig
    fewer: ClassVar[Mapping[str, Any]] = {"first": 0.6, "temperature": 1.0}

    def stages(self, records: int) -> list[Ints]:
        """Return the positions of each stage, split by a hash of the index in hundredths."""
        parts = partition(records, min(100, records), "stages of labels")
        cut = max(1, round(self.config.first * len(parts)))
        return [np.sort(np.concatenate(stage)) for stage in (parts[:cut], parts[cut:]) if stage]
