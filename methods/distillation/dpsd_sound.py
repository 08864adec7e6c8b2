"""DPSD repaired: an ensemble of teachers annotates, and the noise is calibrated to the proven epsilon.

After Liu, Ge, Wang, Li, Liu, "Privacy-Preserving Model Transcription with Differentially Private Synthetic
Distillation"; the repair and all settings that the paper does not print are ours.

Threat model: the attacker holds student, generator, queries and noisy answers, and may know all records but one.
Private: images and labels. Public: the number of records; queries are images of random processes and of the generator.
Released: the student, the generator, some of its images. Unit record, adjacency replace.

Each record trains one of many teachers (DPSD has one), so it changes one teacher's answer per query: by sqrt(2) in L2
for a one-hot vote, by up to 2 for a normalised gradient. The sum over teachers gets Gaussian noise. The student trains
for many epochs on a few thousand answers with the squared error, so that unbiased noise leaves the expected gradient
unchanged. Rounds alternate as in Algorithm 1: the student drives the generator, teachers answer its images, and the
student trains on all answers. Claimed and proven: the exact figure of the Gaussian mechanism over all queries.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.core.seeds import seeded
from bench.interface import (
    BenchError,
    Budget,
    Context,
    Facts,
    FitSettings,
    Gaussian,
    Ledger,
    PrivateData,
    PublicData,
    Released,
    as_float,
    features_and_logits,
    predict,
    register_method,
    setting,
    shifted,
    smallest_noise,
)
from bench.methods.distillation.alternation_config import AlternationConfig
from bench.methods.distillation.annotation import bounded, distillation_gradient, gradient_sensitivity, keep_top
from bench.methods.distillation.answer_pool import BETWEEN, BestStudent, squared_error
from bench.methods.distillation.dpsd_family import CITATION
from bench.methods.shared.calibration import ClaimedBy
from bench.methods.shared.clipping import EXACT
from bench.methods.shared.given_teacher import GivenTeacherConfig, OneTeacher, TakesTeacher, given_net
from bench.methods.shared.random_images import KINDS, random_images
from bench.methods.shared.settings_checks import SHOWN, student_depends
from bench.methods.shared.starts_public import public_start
from bench.methods.shared.teachers import (
    EnsembleMethod,
    augmented_settings,
    largest_shift,
    quick_teachers,
    teacher_pool,
    tiny_teachers,
    train_ensemble,
)
from bench.models.feature_net import OnFixedMap
from bench.models.generators import DataFreeGenerator
from bench.storage.checkpoint import Loop, Part
from bench.training.data_free import generate, generator_terms
from bench.training.divergence import check_finite, descend
from bench.training.ensemble import Ensemble

NON_TARGET_WEIGHT = 8.0  # lambda of DPSD, section III-B; for answer=gradient


@dataclass(frozen=True)
class DPSDSoundConfig(GivenTeacherConfig):
    """Settings of the repaired variant."""

    teachers: int = setting(250, "ours: as PATE's for MNIST", ge=1)
    teacher: str = setting("small_cnn", "ours")
    teacher_steps: int = setting(240, "ours", ge=1)
    teacher_lr: float = setting(0.1, "ours", gt=0)
    teacher_votes: Literal["plain", "standardised"] = setting(
        "plain", "ours: standardised: teachers answer by logits standardised over a round's queries, class by class",
        later=True,
    )  # fmt: skip
    student: str = setting("small_cnn", "ours: as methods/distillation/dpsd.py")
    queries: int = setting(10_000, "ours: measured; see the reproduction notes", ge=1)
    rounds: int = setting(2, "ours: the queries of later rounds come from the generator too", ge=1)
    random_share: float = setting(
        0.75, "ours: share of the queries of later rounds made by random processes", ge=0, le=1
    )
    random_kind: Literal["strokes", "objects"] = setting("strokes", KINDS, later=True)
    answer: Literal["votes", "gradient"] = setting("votes", "ours: gradient is Eq. 3 of DPSD, bounded and summed")
    distillation: Literal["decoupled", "dkd", "plain"] = setting("decoupled", "DPSD, Eq. 2; for answer=gradient")
    k: int | None = setting(None, "DPSD, section IV-A: as methods/distillation/dpsd.py; for answer=gradient", ge=1)
    step: float = setting(1.0, "ours: step of Eq. 3 along the mean gradient; for answer=gradient", gt=0)
    sigma: float = setting(100.0, "ours: noise on the sum of answers; calibrated to the budget", gt=0)
    student_steps: int = setting(2000, "ours: in each round", ge=1)
    student_batch: int = setting(128, "ours", ge=1)
    student_lr: float = setting(0.002, "ours", gt=0)
    generator_steps: int = setting(100, "ours: updates of the generator by Eq. 8 before each later round", ge=1)
    generator_lr: float = setting(0.001, "ours", gt=0)
    generator_width: int = setting(32, "ours", ge=1)
    latent_size: int = setting(100, "ours: as methods/distillation/dpsd.py", ge=1, le=4096)
    held_back: float = setting(
        0.0, "ours: share of the answers that no student learns from; each round keeps the student with the least "
        "squared error on them", later=True, ge=0, lt=1,
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.rounds > self.queries:
            raise BenchError(f"{self.rounds} rounds need as many queries, not {self.queries}.")

    def teacher_settings(self, part: int, facts: Facts) -> FitSettings:
        """Return how a teacher of `part` records is trained."""
        return augmented_settings(self.teacher_steps, min(60, max(4, part * 4 // 5)), self.teacher_lr, facts)

    def sensitivity(self, facts: Facts) -> float:
        """Return the L2 sensitivity of the summed answers to one query."""
        if self.answer == "votes":
            return math.sqrt(2)
        return gradient_sensitivity(self.distillation, facts.classes, self.top_k(facts), NON_TARGET_WEIGHT)

    def top_k(self, facts: Facts) -> int:
        """Return k; see :meth:`bench.methods.distillation.alternation_config.AlternationConfig.top_k`."""
        return AlternationConfig(k=self.k).top_k(facts)


@register_method("dpsd-sound")
class DPSDSound(ClaimedBy, TakesTeacher, EnsembleMethod):
    """Synthetic queries, an ensemble's noisy answers, and a student that learns from these answers."""

    config: DPSDSoundConfig
    citation = f"after {CITATION}"
    claimed_by = EXACT
    claimed_in = "ours: exact figure of Gaussian noise"
    claim_note = "as proven"

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        quick = {"teachers": quick_teachers(facts), "queries": 10_000 if facts.private_records > 10_000 else 2000}
        tiny = {"teachers": tiny_teachers(facts), "teacher_steps": 5, "queries": 64}
        return {"quick": quick, "tiny": {**tiny, "student_steps": 10, "generator_steps": 2, "generator_width": 8}}

    def calibrate(self, budget: Budget) -> DPSDSoundConfig:
        """Return `config` with the least noise that keeps the exact figure of all its queries within `budget`."""
        self.config.top_k(self.facts)
        self.check_facts()
        sigma = smallest_noise(lambda sigma: self.changed(sigma=sigma).charges(), budget, claimed=EXACT, sound=EXACT)
        return dataclasses.replace(self.config, sigma=sigma)

    def charges(self) -> list[Gaussian]:
        return [Gaussian(self.config.sigma / self.config.sensitivity(self.facts), self.config.queries)]

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        """Train the ensemble, query it in rounds, train student and generator on the answers."""
        facts, draws = private.facts, context.streams.torch("queries")
        first = context.streams.torch("student/start")
        student, options = public_start.make_public_student(self.config, facts, context, first)
        with seeded(context.streams.torch("generator/start")):
            generator = DataFreeGenerator(*facts.shape, self.config.latent_size, self.config.generator_width)
        generator.to(context.device)
        given = given_net(self.config, facts, context)
        teachers: Ensemble | OneTeacher
        if given is not None:
            teachers = OneTeacher(given, context)
        else:
            with teacher_pool(self.config, context) as pool:
                teachers = train_ensemble(self.config, private, context, pool)
        images, labels = [], []
        for number in range(self.config.rounds):
            # Earlier rounds get the remainder of the queries.
            count = len(range(number, self.config.queries, self.config.rounds))
            made = round(count * (1 - self.config.random_share)) if number else 0
            asked = random_images(count - made, facts.shape, draws, self.config.random_kind)
            if made:
                self.drive(generator, student, context)
                asked = torch.cat([asked, generate(generator.eval(), made, draws, context.device, 200)])
            believed = predict(student, asked, device=context.device).softmax(1)
            images.append(asked)
            labels.append(self.ask(teachers, asked, believed, ledger, context))
            self.learn(student, torch.cat(images), torch.cat(labels), context, number)
        self.drive(generator, student, context)
        shown = generate(generator.eval(), SHOWN, draws, context.device, 200)
        return Released(student, self.config.student, options, generator, {"synthetic_images": shown})

    def ask(
        self, teachers: Ensemble | OneTeacher, images: Tensor, believed: Tensor, ledger: Ledger, context: Context
    ) -> Tensor:
        """Return unbiased noisy soft labels (n, classes), not probabilities; `believed` (n, classes): the student's."""
        config, facts = self.config, self.facts
        with context.progress.stage("answers", len(teachers)) as stage:
            logits = teachers.logits(images, stage)
        if config.answer == "votes":
            total = functional.one_hot(logits.argmax(2), facts.classes).sum(0).double()
        else:
            k = config.top_k(facts)
            total = torch.zeros(believed.shape, dtype=torch.float64)
            for one in logits:
                gradient = distillation_gradient(one.softmax(1), believed, config.distillation, NON_TARGET_WEIGHT)
                total += bounded(keep_top(gradient, k), "normalise", 1.0, 1e-4)
        # One record moves each row by at most one query's sensitivity, hence all rows by sqrt(rows) times that in L2.
        sensitivity = config.sensitivity(facts) * math.sqrt(len(images))
        noisy = ledger.gaussian(total.numpy(), sensitivity=sensitivity, noise_multiplier=config.sigma / sensitivity)
        mean = torch.from_numpy(noisy / len(teachers)).float()
        return mean if config.answer == "votes" else believed - config.step * mean

    def learn(self, student: nn.Module, images: Tensor, labels: Tensor, context: Context, number: int) -> None:
        """Train `student` on `images` (uint8) and noisy `labels` (n, classes) by its probabilities' squared error.

        With ``held_back`` it keeps the weights with the least error on held-out answers.
        """
        config, draws = self.config, context.streams.torch(f"student/round-{number}")
        student.to(context.device).train()
        # Features of a frozen backbone are computed once, so their images are not shifted.
        head: nn.Module | None = None
        if isinstance(student, OnFixedMap):
            head, features = student.head, public_start.uncached_features(student.fixed, images, context, "queries")
        optimizer = torch.optim.Adam(student.parameters(), config.student_lr)
        best, held = BestStudent(), evenly(min(round(config.held_back * len(images)), len(images) - 1), len(images))
        kept = torch.ones(len(images), dtype=torch.bool).index_fill(0, held, False).nonzero()[:, 0]

        def look() -> None:
            found = predict(student, images[held], device=context.device).softmax(1)
            best.look(student, squared_error(found, labels[held]))
            student.train()

        depends = {**student_depends(config, context), "round": number}
        with context.stage("student", depends, config.student_steps) as (checkpoint, stage):
            parts: dict[str, Part] = {"student": student, "optimizer": optimizer, "draws": draws, "best": best}
            loop = Loop(checkpoint, parts, [images, labels], context.device)
            for step in range(loop.start(stage), config.student_steps):
                for group in optimizer.param_groups:
                    group["lr"] = config.student_lr * 0.5 * (1 + math.cos(math.pi * step / config.student_steps))
                if len(held) and step % BETWEEN == 0:
                    look()
                rows = kept[torch.randint(len(kept), (config.student_batch,), generator=draws)]
                if head is None:
                    batch = shifted(as_float(images[rows]), largest_shift(self.facts), draws).to(context.device)
                    logits = student(batch)
                else:
                    logits = head(features[rows].to(context.device).float())  # scattering's are stored in half
                loss = (logits.softmax(1) - labels[rows].to(context.device)).square().sum(1).mean()
                if step % 100 == 0:
                    check_finite({"squared error": loss}, step, "the student")
                descend(optimizer, loss)
                stage.advance()
                loop.done(step + 1, config.student_steps)
        if len(held):
            look()
            best.restore(student)
        student.eval()

    def drive(self, generator: Any, student: nn.Module, context: Context) -> None:
        """Update `generator` by Eq. (8) against `student`, from fresh latent inputs."""
        config, draws = self.config, context.streams.torch("generator/latents")
        optimizer = torch.optim.Adam(generator.parameters(), config.generator_lr)
        student.eval()
        generator.train()
        with context.progress.stage("generator", config.generator_steps) as stage:
            for step in range(config.generator_steps):
                made = generator(generator.noise(64, draws, context.device))
                terms = generator_terms(*features_and_logits(student, made), norm=2)
                check_finite(terms, step, "the generator")
                descend(optimizer, torch.stack(list(terms.values())).sum())
                stage.advance()


def evenly(count: int, total: int) -> Tensor:
    """Return `count` evenly spaced positions in 0..`total` - 1, so that every round has its share."""
    return torch.arange(count) * total // max(count, 1)
