"""Honest methods of unusual structure pass the check and publishing."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.core.progress import Progress
from bench.publishing.outcomes import Outcomes
from bench.publishing.publish import Fate, examine
from bench.publishing.verify import demand_audits, verify
from helpers.plugins import ASKED, STOPPING, source
from publishing.test_verify import run_cells, use

Edits = tuple[tuple[str, str], ...]


def charged(*events: str) -> Edits:
    """Edits that plan and claim `events`, in which NOISE stands for the noise."""
    return (
        ("[Gaussian(noise)]", f"[{', '.join(events)}]".replace("NOISE", "noise")),
        ("[Gaussian(self.config.noise)]", f"[{', '.join(events)}]".replace("NOISE", "self.config.noise")),
    )


PCA: Edits = (
    *charged("Gaussian(NOISE)", "Gaussian(NOISE)"),
    (
        f"        told = {ASKED}\n",
        """        moments = (images.double().T @ images.double()).numpy()  # one record: norm 1
        noisy = ledger.gaussian(moments, sensitivity=2**0.5, noise_multiplier=self.config.noise)
        basis = torch.linalg.eigh(torch.from_numpy(noisy + noisy.T))[1][:, -16:].float()
        told = ledger.gaussian((sums @ basis).numpy(), sensitivity=2.0, noise_multiplier=self.config.noise)
        told = told @ basis.double().numpy().T
""",
    ),
)
"""Sums in the leading directions of a noisy covariance."""
TREE: Edits = (
    *charged("TreeSums(NOISE, 4)"),
    ("from bench.interface import", "from bench.privacy.events.events import TreeSums\nfrom bench.interface import"),
    (
        f"        told = {ASKED}\n",
        """        for step in range(4):
            part = torch.zeros_like(sums).index_add_(0, private.labels[step::4], images[step::4])
            told = ledger.tree_sum(
                part.numpy(), step=step, steps=4, sensitivity=2.0, noise_multiplier=self.config.noise
            )
""",
    ),
)
"""The sums of four batches, by a tree."""
FEWER = ("noise *= 1.05", "noise *= 1.4")  # each figure of a loss distribution takes a second
HISTOGRAM: Edits = (
    FEWER,
    *charged("SampledGaussian(0.5, NOISE)", "Gaussian(NOISE, adjacency=Adjacency.ADD_REMOVE)"),
    (
        "from bench.interface import",
        "from bench.interface import Adjacency, SampledGaussian\nfrom bench.interface import",
    ),
    ('    citation = "none"\n', '    citation = "none"\n    adjacency = Adjacency.ADD_REMOVE\n'),
    (
        f"        told = {ASKED}\n",
        """        one_hot = torch.nn.functional.one_hot(private.labels, private.facts.classes).double().numpy()
        counts = ledger.sampled_gaussian(
            one_hot[None], max_norm=1.0, sampling_rate=0.5, noise_multiplier=self.config.noise
        )[0]
        told = ledger.gaussian(sums.numpy(), sensitivity=1.0, noise_multiplier=self.config.noise)
        told = told / counts.clip(min=1.0)[:, None]
""",
    ),
)
"""Sums over counts, which are those of a sample."""
CHOICE: Edits = (
    FEWER,
    *charged("Gaussian(NOISE)", "Exponential(0.1)"),
    (
        "from bench.interface import",
        "from bench.privacy.events.choice_events import Exponential\nfrom bench.interface import",
    ),
    (
        f"        told = {ASKED}\n",
        f"""        bright = private.images.float().flatten(1).mean(1)
        scores = torch.stack([(bright > 32 * level).sum() for level in range(8)]).double().numpy()[None]
        (chosen,) = ledger.exponential_mechanism(scores, sensitivity=1.0, epsilon=0.1)
        told = {ASKED} * (1 + 0.1 * int(chosen))
""",
    ),
)
"""A scale, by the exponential mechanism."""
ADAPTIVE: Edits = (
    *charged("DPSGD(0.1, 2 * NOISE, 30)"),
    (
        "from bench.interface import",
        """from bench.interface import Adjacency
from bench.privacy.dpsgd.clipping import Adaptive
from bench.privacy.dpsgd.dp_sgd import DPSGDRun
from bench.privacy.events.events import DPSGD
from bench.interface import""",
    ),
    ("noise = 0.1\n", "noise = 0.25\n"),
    FEWER,
    ('    citation = "none"\n', '    citation = "none"\n    adjacency = Adjacency.ADD_REMOVE\n'),
    (f"        told = {ASKED}\n", ""),
    (
        """        weight = torch.from_numpy(told).float()
        student.get_classifier().weight.data.copy_(weight - weight.mean(0))
""",
        """        records = private.facts.private_records
        ledger.dp_sgd(
            student, private.images, private.labels,
            DPSGDRun(
                optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
                loss=torch.nn.functional.cross_entropy, noise_multiplier=2 * self.config.noise,
                clipping=Adaptive(1.0, quantile=0.5, learning_rate=0.2, count_noise=20.0),
                expected_batch_size=round(0.1 * records), steps=30, records=records,
            ),
        )
""",
    ),
)
"""DP-SGD that clips to a noisy quantile."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "edits",
    [PCA, TREE, STOPPING, HISTOGRAM, CHOICE, ADAPTIVE],
    ids=["noisy covariance", "tree of sums", "early stop", "sampled histogram", "exponential mechanism", "clipping"],
)
def test_it_is_checked_audited_and_added(
    edits: Edits, into: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(tmp_path / "installed", source(*edits), monkeypatch)
    run = run_cells(tmp_path / "runs", "-s", "0,1")
    found = examine([run], into)
    demand_audits(found)
    verify(found, Outcomes(into), Progress())
    assert [item.why for item in found.refused] == []
    assert {item.kind for item in found.items if item.fate is Fate.PASSED} >= {"check", "rerun", "replay"}
