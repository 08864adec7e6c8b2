"""Reconstructions of one target and the evaluators of one data set, from the cache if present."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from bench.core.config import as_dict
from bench.core.seeds import Streams
from bench.core.types import Access, Facts, PublicData, Reconstructions, Released
from bench.evaluation.attack.data_roles import Labelled
from bench.evaluation.attack.evaluator_nets import recipes
from bench.evaluation.attack.evaluators import Committee, digests, train_committee
from bench.evaluation.attack.inversion_scores import Observed
from bench.evaluation.attack.reference_models import content_digest, weights_digest
from bench.interface.attack import InversionAttack
from bench.interface.target_model import Target
from bench.storage.cache import Arrays
from bench.training.context import Context


def committee_on(
    records: Labelled,
    held_out: Labelled,
    facts: Facts,
    context: Context,
    *,
    private: torch.Tensor,
    auxiliary: torch.Tensor | None = None,
    tiny: bool = False,
) -> Committee:
    """Return evaluators trained on `records` and tested on `held_out`, none of them `private` or `auxiliary` images."""
    forbidden = {"the private records": digests(private)}
    if auxiliary is not None:
        forbidden["the auxiliary data"] = digests(auxiliary)
    chosen = [recipe.shorter() if tiny else recipe for recipe in recipes(facts, len(records[0]))]
    return train_committee(*records, facts, context, forbidden, held_out=held_out, chosen=chosen)


def reconstruct(
    attack: InversionAttack, released: Released, known: PublicData | None, observed: Observed | None, context: Context
) -> tuple[Reconstructions, int]:
    """Return the reconstructions from `released` and the number of images queried, from the cache if present."""
    depends = {
        "attack": [attack.name, attack.version], "config": as_dict(attack.config), "seed": context.streams.seed,
        "target": weights_digest(released), "device": context.device.type,
        "auxiliary": None if known is None else content_digest(known.images),
        "observed": None if observed is None else content_digest(observed.images),
    }  # fmt: skip

    def make() -> Arrays:
        target = Target(released, attack.facts, attack.access, context.device)
        answers = None
        if observed is not None and attack.access is Access.CONFIDENCES:
            answers = target.confidences(observed.images, getattr(attack.config, "rounding", 0.0))
            target.queries = 0  # the victims made these queries, not the attacker
        # Give every target the same draws, so that differences come from the targets.
        inner = dataclasses.replace(context, streams=Streams(context.streams.seed, f"attack/{attack.name}/"))
        found = attack.run(target, known, answers, inner)
        arrays: Arrays = {
            "images": found.images.cpu().float().numpy(), "labels": found.labels.cpu().numpy(),
            "queries": np.array([target.queries]),
        }  # fmt: skip
        if found.reached is not None:
            arrays["reached"] = found.reached.cpu().numpy()
        if found.observed is not None:
            arrays["observed"] = found.observed.cpu().float().numpy()
        return arrays

    arrays = context.cache.get("reconstructions", depends, make)
    found = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    made = Reconstructions(found["images"], found["labels"], found.get("reached"), found.get("observed"))
    return made, int(found["queries"])
