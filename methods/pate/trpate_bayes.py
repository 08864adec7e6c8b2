"""TrPATE with Bayesian models: naive Bayes teachers that share a prior made of a public labelled source.

Wang, Zheng, Cao, Wang, "Enhance PATE on Complex Tasks With Knowledge Transferred From Non-Private Data", IEEE Access 7,
2019: sections IV.B and V.B.2, table 5. ``pate-bayes`` is the paper's comparison, with a flat prior.

Threat model: the attacker holds the released student, the source and all records but one. Private: sentences (or
images) and labels; each record enters the sums of one teacher, chosen by a hash of its index. Public: unlabelled
records of the same distribution, and the labelled source. Released: the student, the choice of queries, and their noisy
labels. One record changes one vote per query; Lap(1/gamma) noise on every count makes a query 2*gamma-DP.

Words: the source's posterior Dirichlet of each class is the prior of teachers and student; their own sentences add
counts of the same weight, as in the paper, so a source much larger than a teacher's part decides nearly every vote.

Images, our extension: a Gaussian per class and feature, over pixels or a frozen ``backbone``'s features. The prior
comes from the labelled source if there is one, otherwise from the unlabelled public pool, one for all classes.

Claimed: theorem 1, PATE's closed form. Proven: the composition of the noisy histograms. Neither covers records that are
also in the source; see :mod:`bench.data.text` for the paper's own SST.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from bench.data.text import VOCABULARY, is_text
from bench.interface import (
    DATASETS,
    BenchError,
    Budget,
    Context,
    Facts,
    PrivateData,
    PublicData,
    PublicKind,
    make_student,
    partition,
    register_method,
    setting,
)
from bench.methods.pate import naive_bayes as naive_bayes
from bench.methods.pate.family import Student
from bench.methods.pate.naive_bayes import GaussianPrior, Ints, flat_prior, group_counts, pool_prior, source_prior
from bench.methods.pate.pate import PATE, Printed
from bench.methods.shared.teachers import quick_teachers, tiny_teachers
from bench.methods.shared.transfer import (
    OnBackbone,
    TransferConfig,
    source_part,
    transfer_options,
    with_digest,
    words_of,
)
from bench.models.frozen_backbone import FrozenTransfer, make_head
from bench.models.gaussian_nb import GaussianHead, set_gaussians
from bench.models.text_nets import set_words
from bench.training.features import Part, features_of

TABLE = "TrPATE, table 5"


@dataclass(frozen=True)
class PATEBayesConfig:
    """Settings of naive Bayes teachers with a flat prior."""

    teachers: int = setting(80, "TrPATE, section V.B.1: 80 teachers", ge=1)
    queries: int = setting(1000, f"{TABLE}: 100 to 1000; calibrated to the budget", ge=1)
    gamma: float = setting(0.05, f"{TABLE}: 0.05 and 0.1", gt=0)
    least_queries: int = setting(1, "TrPATE keeps gamma; a larger number lowers it if the budget covers fewer", ge=1)
    claim: Literal["data-dependent", "closed-form"] = setting("closed-form", "TrPATE, theorem 1")
    alpha: float = setting(1.0, "TrPATE, section V.B.2: the flat Dirichlet prior", gt=0)
    variance_floor: float = setting(0.01, "ours: features only; (a tenth of the pixels' range) squared", gt=0)


@dataclass(frozen=True)
class TrPATEBayesConfig(PATEBayesConfig, TransferConfig):
    """Settings of naive Bayes teachers with a prior from public data, and with public features where one is named."""

    fraction_of_prior: ClassVar[bool] = True
    backbone: str = setting("", "ours: none, so Gaussians see pixels; with a timm model they see its features")
    image_size: int = setting(0, "ours: the size of the backbone's own training")
    source_fraction: float = setting(1.0, f"{TABLE}: all of the source; section V.A.2 tries 0.5 and 0.1 on images")
    source_weight: float = setting(1.0, "TrPATE, section IV.B.1: the source's posterior as it is; less is ours", ge=0)
    kappa: float = setting(1.0, "ours: features only; records that the prior is worth for a mean", ge=0)
    nu: float = setting(10.0, "ours: features only; records that the prior is worth for a variance", ge=0)


@register_method("pate-bayes")
class PATEBayes(PATE):
    """Query naive Bayes teachers with a flat prior; the student is naive Bayes on the answers, with the same prior."""

    config: PATEBayesConfig
    citation = "Wang et al. 2019"
    public_data: ClassVar[str] = "unlabelled records of the target's distribution"
    votes_for_unseen: ClassVar[bool] = True
    printed: ClassVar[Printed] = {}  # PATE 2017's tables are of other teachers' votes

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        """See :meth:`bench.interface.Method.presets`. Closed forms are quick: only small sets need fewer teachers."""
        few = {"quick": min(cls.Config().teachers, quick_teachers(facts)), "tiny": tiny_teachers(facts)}
        least = 4 * facts.classes
        return {name: {"teachers": n, "gamma": 5 / n, "least_queries": least} for name, n in few.items()}

    def check_models(self, context: Context) -> None:
        make_student(student_name(self.facts), self.facts, context.streams.torch("unused"))

    def word_prior(self, public: PublicData, context: Context) -> NDArray[np.float64]:
        """Return the parameters of the Dirichlet priors, (classes, words)."""
        return np.full((self.facts.classes, VOCABULARY), self.config.alpha)

    def seen(self, images: torch.Tensor, part: Part, public: PublicData, context: Context) -> NDArray[np.float32]:
        """Return the Gaussians' input for `images`, uint8 (n, channels, height, width): pixels in [0, 1], (n, d)."""
        return images.flatten(1).numpy().astype(np.float32) / np.float32(255)

    def new_student(self, public: PublicData, context: Context) -> Student:
        """Return a student for words, or one whose classifier is a ``GaussianHead``; its name and options."""
        name = student_name(self.facts)
        net, options = make_student(name, self.facts, context.streams.torch("student/start"))
        return net, name, options

    def feature_prior(self, public: PublicData, width: int, context: Context) -> GaussianPrior:
        """Return the prior of the Gaussians over `width` features."""
        return flat_prior(self.facts.classes, width)

    shardable = False  # counting words takes seconds

    def shares(self, seed: int) -> tuple[str, ...]:
        """Return nothing: there are no artefacts to share."""
        return ()

    def votes(self, private: PrivateData, public: PublicData, order: Ints, context: Context) -> Ints:
        facts, labels, queries = private.facts, private.labels.numpy(), order[: self.config.queries]
        # The same parts as other PATE methods with this seed and number of teachers.
        parts = partition(len(private), self.config.teachers, f"{facts.dataset}/teachers/{context.streams.seed}")
        groups = naive_bayes.record_groups(labels, facts.classes, parts)
        if is_text(facts.shape):
            prior = self.word_prior(public, context)
            count, words = self.config.teachers * facts.classes, prior.shape[1]
            counts = naive_bayes.group_counts(private.images.numpy(), groups, count, words)
            tables = naive_bayes.log_means(prior + counts.reshape(self.config.teachers, facts.classes, words))
            return naive_bayes.word_votes(public.images[queries].numpy(), tables)
        features = self.seen(private.images, "private", public, context)
        asked = self.seen(public.images, "public", public, context)[queries]
        before, floor = self.feature_prior(public, features.shape[1], context), self.config.variance_floor
        fitted = naive_bayes.gaussian_posterior(features, groups, self.config.teachers, before, floor)
        return naive_bayes.gaussian_votes(asked, fitted)

    def student(self, public: PublicData, asked: torch.Tensor, labels: torch.Tensor, context: Context) -> Student:
        """See `PATEFamily.student`: one more teacher, whose records are the answered queries."""
        given = labels.numpy()
        net, name, options = self.new_student(public, context)
        if is_text(self.facts.shape):
            prior = self.word_prior(public, context)
            counts = naive_bayes.group_counts(public.images[asked].numpy(), given, self.facts.classes, prior.shape[1])
            set_words(net, torch.from_numpy(naive_bayes.log_means(prior + counts)))
            return net.eval(), name, options
        features = self.seen(public.images, "public", public, context)[asked.numpy()]
        wide = self.feature_prior(public, features.shape[1], context)
        fitted = naive_bayes.gaussian_posterior(features, given, 1, wide, self.config.variance_floor)
        head = net.get_classifier()  # type: ignore[operator]
        assert isinstance(head, GaussianHead)
        mean, variance, known = (torch.from_numpy(part[0]) for part in (fitted.mean, fitted.variance, fitted.known))
        set_gaussians(head, mean, variance, known)
        return net.eval(), name, options


@register_method("trpate-bayes")
class TrPATEBayes(PATEBayes, OnBackbone):
    """Query naive Bayes teachers whose prior is a public source's posterior; the student has the same prior."""

    config: TrPATEBayesConfig
    public_data: ClassVar[str] = "unlabelled records of the target's distribution, and a labelled source where one is"
    public_data_kinds: ClassVar[tuple[PublicKind, ...]] = (PublicKind.LABELLED, PublicKind.UNLABELLED)

    def public_words(self) -> str:
        """See :meth:`bench.interface.Method.public_words`: states what the source shares with the records."""
        spec = DATASETS.get(self.facts.dataset)
        words = [words_of(self.config, self.facts)] if self.config.backbone else []
        if spec is not None and spec.labelled is not None:
            share = "" if self.config.source_fraction == 1 else f"{self.config.source_fraction:g} of "
            words.append(f"a prior from {share}{spec.labelled.name} (overlap: {spec.labelled.overlap})")
        return "; ".join([*words, PATEBayes.public_data])

    def public_kinds(self) -> tuple[PublicKind, ...]:
        """See :meth:`bench.interface.Method.public_kinds`: a backbone and a source, where used."""
        spec = DATASETS.get(self.facts.dataset)
        backbone = (PublicKind.TRANSFERRED,) if self.config.backbone else ()
        source = (PublicKind.LABELLED,) if spec is not None and spec.labelled is not None else ()
        return (*backbone, *source, PublicKind.UNLABELLED)

    def calibrate(self, budget: Budget) -> Any:
        """Return `config` with the queries that `budget` pays for, and with its weights' digest."""
        if self.config.backbone and is_text(self.facts.shape):
            raise BenchError(
                f"{self.facts.dataset} holds sentences, of which words are counted: leave the backbone out."
            )
        calibrated = super().calibrate(budget)
        return with_digest(calibrated, self.facts) if self.config.backbone else calibrated

    def seen(self, images: torch.Tensor, part: Part, public: PublicData, context: Context) -> NDArray[np.float32]:
        """Return the backbone's features of `images`, or their pixels without a backbone: (n, d)."""
        if not self.config.backbone:
            return super().seen(images, part, public, context)

        return features_of(images, self.backbone(public, context), context, part).numpy()

    def new_student(self, public: PublicData, context: Context) -> Student:
        """See :meth:`PATEBayes.new_student`: Gaussians on the backbone's features if there is one."""
        if not self.config.backbone:
            return super().new_student(public, context)

        backbone = self.backbone(public, context)
        head = make_head("gaussian", backbone.num_features, 0, self.facts.classes)
        options = transfer_options(backbone, self.facts, "gaussian", 0)
        return FrozenTransfer(backbone, head, self.facts.classes), "frozen_transfer", options

    def word_prior(self, public: PublicData, context: Context) -> NDArray[np.float64]:
        """Return the posterior given the source, a flat prior plus the source's counts, cached for all cells."""
        flat, source = super().word_prior(public, context), public.labelled
        if source is None:
            raise BenchError(
                f"trpate-bayes takes its prior from a labelled public source, and {self.facts.dataset} has none. Use "
                "pate-bayes, or a data set with a source such as movie-review."
            )
        words = flat.shape[1]

        def make() -> dict[str, NDArray[np.generic]]:
            labels = source.labels.numpy()
            kept = source_part(labels, self.config.source_fraction, source.name)
            return {"counts": group_counts(source.images.numpy()[kept], labels[kept], self.facts.classes, words)}

        depends = {"source": source.name, "fraction": self.config.source_fraction, "words": words}
        counts = context.cache.get("source-counts", depends, make)["counts"]
        return flat + self.config.source_weight * counts

    def feature_prior(self, public: PublicData, width: int, context: Context) -> GaussianPrior:
        """Return the source's Gaussians or, without a source, the unlabelled pool's, the same for all classes."""
        source = public.labelled
        if source is None:
            features = self.seen(public.images, "public", public, context)
            return pool_prior(features, self.facts.classes, self.config.kappa, self.config.nu)
        if tuple(source.images.shape[1:]) != self.facts.shape:
            raise BenchError(
                f"the source {source.name!r} has images of shape {tuple(source.images.shape[1:])}, the data set "
                f"{self.facts.dataset} of {self.facts.shape}: a shared prior needs the same features. Use pate-bayes."
            )
        labels = source.labels.numpy()
        kept = source_part(labels, self.config.source_fraction, source.name)
        features = self.seen(source.images, "source", public, context)[kept]
        return source_prior(features, labels[kept], self.facts.classes, self.config.kappa, self.config.nu)


def student_name(facts: Facts) -> str:
    """Return the timm name of the student for data of `facts`."""
    return "naive_bayes_words" if is_text(facts.shape) else "naive_bayes_pixels"
