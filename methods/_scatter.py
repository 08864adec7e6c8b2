"""What the methods on scattering coefficients share: settings by data set, and DP-SGD of a head on cached features.

Scattering coefficients, and their normalisation within each image, are a fixed map of each record by itself
(:mod:`bench.models.scattering`), so features cost no privacy and are computed once for all runs. Of data sets that the
paper has no settings for, grey images take those of MNIST and others those of CIFAR-10. Where records are few, the
quick preset takes an eighth of them as a batch.

The stated learning rates are for epsilon 3. The quick preset lowers them as the noise grows (`scale_lr`): at epsilon 1,
on 10,000 training records of Fashion-MNIST held out, half the rate took the linear classifier from 87.7% to 88.6%. No
test record was used; on Fashion-MNIST itself no epsilon counts that choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, ClassVar

from bench.interface import BenchError, Context, Facts, PrivateData, PublicData, Released
from methods._common import student_depends
from methods.dp_sgd import DPSGD

if TYPE_CHECKING:
    from torch import Tensor, nn

    from bench.interface import Ledger

RUNS = "Tramer and Boneh 2021, the authors' code ftramer/Handcrafted-DP: "
"""Where the settings of each data set are from."""


class ScatterDPSGD(DPSGD):
    """DP-SGD of the head of a student on scattering coefficients."""

    version = 1
    citation = "Tramer and Boneh 2021"
    by_dataset: ClassVar[Mapping[str, Mapping[str, Any]]]
    """What the paper changes for a data set; those of mnist are the defaults."""

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        """See :meth:`bench.interface.Method.presets`."""
        other = {} if facts.shape[0] == 1 else cls.by_dataset["cifar10"]
        paper = cls.by_dataset.get(facts.dataset, other)
        batch = {**vars(cls.Config()), **paper}["batch_size"]
        few = facts.private_records < 4 * batch
        fitting = max(1, facts.private_records // 8) if few else batch
        return {
            "paper": paper,
            "quick": {"scale_lr": True, **({"batch_size": fitting} if fitting < batch else {})},
            "tiny": {"epochs": 1.0, "batch_size": min(32, fitting)},
        }

    @classmethod
    def shares(cls, config: Any, facts: Facts, seed: int) -> tuple[str, ...]:
        """See :meth:`bench.interface.Method.shares`."""
        return (f"scattering of {facts.dataset}",)

    def train_student(
        self, config: Any, private: PrivateData, public: PublicData, ledger: Ledger, context: Context
    ) -> Released:
        """Train the student's head by DP-SGD on the features of the private records."""
        from bench.interface import make_student
        from bench.models.scattering import Scattering
        from bench.training.features import trained_part

        student, options = make_student(config.student, private.facts, context.streams.torch("student/start"))
        if not isinstance(getattr(student, "fixed", None), Scattering):
            raise BenchError(
                f"{self.name} trains a head on scattering coefficients, and {config.student} is none. Accepted as "
                "student: scatter_linear, scatter_cnn_mnist, scatter_cnn_cifar."
            )
        student.to(context.device)
        head, features = trained_part(student, private.images, context, "private")
        self.train_head(config, head, features, private, ledger, context)
        return Released(student, config.student, options)

    def train_head(
        self,
        config: Any,
        head: nn.Module,
        features: Tensor,
        private: PrivateData,
        ledger: Ledger,
        context: Context,
    ) -> None:
        """Train `head` in place on the `features` of the private records."""
        steps = config.steps(private.facts.private_records)
        depends = {**student_depends(config, context), "opacus": version("opacus")}
        with context.checkpoint("student", depends) as checkpoint, context.progress.stage("student", steps) as stage:
            run = self.dp_sgd_run(config, private.facts, stage, checkpoint)
            ledger.dp_sgd(head, features, private.labels, run)
