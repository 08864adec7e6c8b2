"""The site's glossary, and tables whose headings it explains."""

from __future__ import annotations

from functools import lru_cache
from html import escape

from markupsafe import Markup

from bench.results.text import Table

TERMS = {
    "student": "The model that a method trains and releases. Only it and other declared releases become public.",
    "epsilon": "The privacy cost: using one record changes the probability of any release by a factor of at most "
    "e^epsilon, up to delta. Smaller is more private; above 10 the guarantee is weak.",
    "delta": "The probability with which the bound of epsilon may fail.",
    "budget": "The epsilon that the run was calibrated to, and its basis: claimed by the paper or proven here. For a "
    "printed number, the epsilon that its paper claims.",
    "claimed": "The epsilon of this setting by the paper's formula.",
    "claim": "Whether the claim is true for the run. holds: the proof covers it. data-dependent: it holds for this "
    "run, but the number itself depends on private data and must not be released. does not hold: the proven epsilon "
    "is larger than the claim, or infinite. refuted by experiment: an audit measured more than the claim. impossible: "
    "no honest run would reach this accuracy under the claim.",
    "proven": "The epsilon that a sound accountant proves for the mechanisms that ran, for one replaced record. Rows "
    "are ranked within bands of it. ∞: the method uses private data outside any mechanism.",
    "proven, own adjacency": "The same for the neighbours of the method's own analysis: under add-remove, one record "
    "is present or absent.",
    "audited": "A lower bound on epsilon from an experiment, at 95% confidence: the true epsilon is between audited "
    "and proven. inconclusive: the experiment did not have the power to show more.",
    "1 in 100": "The largest probability with which any attacker names the true value of one record (or label, or "
    "client) among 100 equally likely candidates, by the proven curve: 1% is a guess, unbounded says that nothing is "
    "proven. It holds for the neighbours of the method's own analysis.",
    "audit": "What the audit compared, how often, and with what power.",
    "accuracy": "Share of test records classified correctly, in %, with a 95% interval over seeds and test records; "
    "with one seed and no other row to borrow a deviation from, over test records only. Collapsed seeds count at "
    "chance.",
    "whole test set": "Accuracy in % on the whole official test set, of methods that use no part of it as public data.",
    "place": "Rank by accuracy within the band of proven epsilon. Methods that no test tells apart share a rank, such "
    "as 2-5. A method counts once; a row with fewer than three seeds has no rank. Filters leave ranks as they are.",
    "drop": "Percentage points below the best non-private run on the same data, preset and backbone.",
    "public data": "Data that the method uses without protection.",
    "preset": "paper: the paper's settings. quick: smaller settings that take minutes on two cores; every change is "
    "recorded.",
    "inversion": "Attack that reconstructs training images: how many more (in points) three evaluators recognise than "
    "for a target trained on other records. The strongest attack is shown.",
    "membership": "Attack that tells training records from others: the area under its ROC curve. 0.5 is chance.",
    "robustness": "Accuracy in % under the smallest adversarial perturbation of the input. It does not measure "
    "privacy.",
    "seed": "Number that seeds a run's randomness. Rows are means over seeds.",
    "unit": "What epsilon protects: one training record, one client with all its records, or only labels.",
    "adjacency": "Which data sets count as neighbours: replace changes one record, add-remove leaves one out.",
    "ledger": "The list of all uses of private data in a run. Each is a mechanism with known noise.",
    "mechanism": "A noisy answer about private data, with a proof of its privacy cost.",
    "accountant": "A method to compose the costs of mechanisms. A sound one never underestimates.",
    "sound": "Whether the accountant's bound is proven for the mechanisms that ran.",
    "releasable": "Whether the number may be published; a number that depends on private data may not.",
    "order": "The Rényi order at which the accountant's bound is smallest.",
    "basis": "Which epsilon meets the budget: the one claimed, or the one proven.",
    "canaries": "Records that the auditor inserts into the training data and tries to detect.",
    "could show at most": "The largest bound that this experiment could have given.",
    "without noise": "The result of the same experiment without noise, which shows its power.",
}
"""Definitions by term, for tooltips and the list of terms."""

_MARKED = {label: Markup('<abbr title="{}">{}</abbr>').format(meaning, label) for label, meaning in TERMS.items()}


def term(label: str) -> str:
    """Return `label` with its meaning as a tooltip, if the glossary has it."""
    return _MARKED.get(label, label)


@lru_cache(maxsize=256)  # the seeds of a row share most of their tables
def plain_table(table: Table) -> Markup:
    """Return `table` as HTML, without a template: a site has a hundred cells for each record."""
    note = f"<p>{escape(table.note)}</p>\n" if table.note else ""
    if not table.rows:
        return Markup(note)
    caption = escape(table.caption)
    head = "".join(f'<th scope="col">{_heading(column)}</th>' for column in table.columns)
    rows = "".join(
        f'<tr><th scope="row">{_heading(first)}</th>{"".join([f"<td>{escape(text)}</td>" for text in rest])}</tr>\n'
        for first, *rest in table.rows
    )
    return Markup(
        f'{note}<div class="scroll" tabindex="0" role="group" aria-label="{caption}">\n<table class="plain">\n'
        f"<caption><span>{caption}</span></caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n"
        "</table>\n</div>\n"
    )


def _heading(label: str) -> str:
    return _MARKED.get(label) or escape(label)
