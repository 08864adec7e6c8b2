"""Settings of Algorithm 1 of DPSD, separate from its loop because planning runs without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from bench.interface import BenchError, Facts, setting
from bench.methods.shared.given_teacher import GivenTeacherConfig
from bench.methods.shared.random_images import KINDS


@dataclass(frozen=True)
class AlternationConfig(GivenTeacherConfig):
    """Settings of Algorithm 1; each method adds its annotation settings."""

    teacher: str = setting("resnet34", "section IV-A: ResNet34 for all but ImageNet")
    teacher_epochs: float = setting(10.0, "ours: the paper does not print how teachers are trained", gt=0)
    teacher_lr: float = setting(0.05, "ours: the paper does not print how teachers are trained", gt=0)
    student: str = setting("small_cnn", "ours: III-D names a three-layer CNN, IV-A DataLens's, not specified")
    iterations: int = setting(200, "section IV-A: T", ge=1)
    batch: int = setting(256, "section IV-A: b", ge=1)
    k: int | None = setting(
        None, "section IV-A: 3 for 3 to 10 classes, 2 for 2, 50 for CIFAR100, 300 for ImageNet", ge=1
    )
    amount: int | None = setting(
        None, "Fig. 5, amount of synthetic data: queries before answers are reused; none: all b T", ge=1
    )
    student_lr: float = setting(0.1, "section IV-A: gamma_s", gt=0)
    generator_lr: float = setting(0.01, "section IV-A: gamma_g", gt=0)
    optimizer: Literal["adam", "sgd"] = setting("adam", "section IV-A; Algorithm 1 has plain gradient steps")
    latent_size: int = setting(100, "ours: not printed; that of DAFL", ge=1, le=4096)
    generator_width: int = setting(128, "ours: not printed; that of DAFL", ge=1)
    train_latents: bool = setting(True, "Algorithm 1, line 6: the random vectors are trained")
    one_hot_loss: bool = setting(True, "Eq. 8, first term; ablated in Table VI")
    entropy_loss: bool = setting(True, "Eq. 8, second term; ablated in Table VI")
    activation_loss: bool = setting(True, "Eq. 8, third term; ablated in Table VI")
    generator_loss: Literal["dafl", "printed"] = setting("dafl", "Eq. 8 as the text has it; the formula differs")
    random_share: float = setting(0.0, "ours: share of a batch made by random processes, not the generator", ge=0, lt=1)
    random_kind: Literal["strokes", "objects"] = setting("strokes", KINDS, later=True)
    pool_steps: int = setting(
        0, "ours: maximum student steps on all answers after the last iteration; Algorithm 1 takes one step on each "
        "answer and discards it", later=True, ge=0,
    )  # fmt: skip

    labels_reach_generator: ClassVar[bool] = True  # Algorithm 1, line 6: the generator's loss includes Eq. 7

    def __post_init__(self) -> None:
        if self.generated < 2:
            raise BenchError(
                f"a batch of {self.batch} with random_share {self.random_share} leaves {self.generated} generated "
                "images; the generator's batch normalisation needs 2. Raise batch."
            )

    @property
    def generated(self) -> int:
        """Number of generated images in a batch; the rest are random."""
        return self.batch - round(self.batch * self.random_share)

    @property
    def uniform_share(self) -> float:
        """The share of answers drawn evenly from all classes that the student's loss allows for."""
        return 0.0

    @property
    def asked(self) -> int:
        """Number of batches that query a teacher: all, or enough to reach `amount`."""
        return self.iterations if self.amount is None else min(self.iterations, -(-self.amount // self.batch))

    def top_k(self, facts: Facts) -> int:
        """Return k, by default the paper's. Raise :class:`BenchError` unless it is in 2..classes."""
        classes = facts.classes
        printed = 300 if classes >= 1000 else 50 if classes >= 100 else min(3, classes)
        k = printed if self.k is None else self.k
        if not 2 <= k <= classes:
            raise BenchError(f"k must lie in 2..{classes}, the number of classes of {facts.dataset}, not {k}.")
        return k
