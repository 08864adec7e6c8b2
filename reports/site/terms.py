"""The site's glossary."""

from __future__ import annotations

from markupsafe import Markup

TERMS = {
    "student": "The model that a method trains and releases. Only it, and what else is named as released, may be seen.",
    "epsilon": "The privacy cost: whether one record was used changes the probability of anything released by a "
    "factor of at most e^epsilon, up to delta. Smaller is more private; above 10 it promises little.",
    "delta": "The probability with which the bound of epsilon may fail.",
    "budget": "The epsilon that the run was asked for, and its basis: the one claimed by the paper or the one proven "
    "here. Of a printed number, the epsilon that its paper claims.",
    "claimed": "The epsilon of this setting by the paper's own formula.",
    "claim": "Whether the claim is true of what ran. holds: the proof covers it. data-dependent: it holds for this "
    "run, but the figure itself depends on private data and may not be released. does not hold: the proof gives more "
    "than is claimed, or nothing finite. refuted by experiment: an audit saw more than is claimed. impossible: no "
    "honest run would reach this accuracy under the claim.",
    "proven": "The epsilon that a sound accountant proves of the mechanisms that ran, for one replaced record. Rows "
    "are ranked within bands of it. ∞: private data was used outside any mechanism.",
    "proven, own adjacency": "The same for the neighbours of the method's own analysis: under add-remove, one record "
    "is there or not.",
    "audited": "A lower bound on epsilon from an experiment, at 95% confidence: the true epsilon lies between audited "
    "and proven. inconclusive: the experiment could not have seen more.",
    "audit": "What the audit compared, how often, and what it could have shown.",
    "accuracy": "Share of right answers on the test records, in %, with the 95% interval that covers both the seeds "
    "and the test records.",
    "whole test set": "Accuracy in % on the whole official test set, of methods that use no part of it as public data.",
    "place": "Rank by accuracy within the band of proven epsilon. Rows whose intervals overlap share a place. Filters "
    "rank again.",
    "drop": "Points of accuracy below the best run without privacy on the same data, preset and backbone.",
    "public data": "Data that the method used and that is not protected.",
    "preset": "paper: the paper's own settings. quick: smaller ones, for minutes on two cores; each change is "
    "recorded.",
    "inversion": "Attack that reconstructs training images: how many more, in points, three evaluators name than for "
    "a target that saw other records. Of several attacks the strongest is shown.",
    "membership": "Attack that tells training records from others: the area under its ROC curve. 0.5 is chance.",
    "robustness": "Accuracy in % under the smallest adversarial change of the input.",
    "seed": "Number that a run's randomness starts from. Rows are the mean over their seeds.",
    "unit": "What epsilon protects: one training record, one client with all its records, or labels alone.",
    "adjacency": "Which data sets count as neighbours: replace changes one record, add-remove leaves one out.",
    "ledger": "The list of all uses of private data in a run. Each is a mechanism with known noise.",
    "mechanism": "A noisy answer about private data, with a proof of what it gives away.",
    "accountant": "A way to add up the costs of mechanisms. A sound one never states too little.",
    "sound": "Whether the accountant's bound is proven for the mechanisms that ran.",
    "releasable": "Whether the figure may be published: one that depends on private data may not.",
    "order": "The Rényi order at which the accountant's bound is smallest.",
    "basis": "Which epsilon meets the budget: the one claimed, or the one proven.",
    "canaries": "Records that the auditor plants to find them again.",
    "could show at most": "The largest bound that this experiment could have given.",
    "without noise": "What the same experiment sees when the noise is left out: its power.",
}
"""Definitions by term, for tooltips and the list of terms."""

_MARKED = {label: Markup('<abbr title="{}">{}</abbr>').format(meaning, label) for label, meaning in TERMS.items()}


def term(label: str) -> str:
    """Return `label` with its meaning as a tooltip, where the glossary has it."""
    return _MARKED.get(label, label)
