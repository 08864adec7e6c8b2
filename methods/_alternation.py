"""Algorithm 1 of DPSD as a loop: generate, annotate, update the student, update generator and latent inputs.

Nothing here knows private data: a teacher is asked by the function that is passed in. (DPSD-T passes the teacher
itself as the discriminator, and declares that.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bench.data_free import NotFiniteError, check_finite, generator_terms
from bench.errors import BenchError
from bench.models.classifiers import features_and_logits
from bench.random_images import random_images
from bench.training import as_float

if TYPE_CHECKING:
    from bench.interface import Context, Facts
    from bench.models.generators import DataFreeGenerator
    from methods._dpsd import AlternationConfig

SHOWN = 100
"""Released synthetic images."""


def soft_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return Eq. (7), the cross-entropy to soft `labels` (n, classes), as a mean; they need not be probabilities."""
    return -(labels * logits.log_softmax(1)).sum(1).mean()


class Alternating:
    """One run of Algorithm 1. Losses are means over a batch where the paper has sums; Adam's step is the same."""

    def __init__(
        self,
        config: AlternationConfig,
        student: nn.Module,
        generator: DataFreeGenerator,
        discriminator: nn.Module,
        annotate: Callable[[Tensor, Tensor], Tensor],
        facts: Facts,
        context: Context,
    ) -> None:
        self.config, self.facts, self.context = config, facts, context
        self.student, self.generator, self.discriminator = student, generator, discriminator
        self.annotate = annotate
        self._random = context.streams.torch("alternation")
        self.latents = generator.noise(config.generated, self._random, context.device).requires_grad_()
        make = torch.optim.Adam if config.optimizer == "adam" else torch.optim.SGD
        self._student_step = make(student.parameters(), lr=config.student_lr)
        trained = [*generator.parameters(), *([self.latents] if config.train_latents else [])]
        self._generator_step = make(trained, lr=config.generator_lr)
        self._good: dict[str, Tensor] = {}

    def alternate(self, depends: Mapping[str, Any]) -> Tensor:
        """Run all iterations and return synthetic images, uint8 (n, channels, height, width).

        `depends` names, for the artefact of the last good state, what the run depends on.

        Raises:
            NotFiniteError: Where a loss is no number any more; the state before it is kept as artefact ``last-good``.
            BenchError: Where no gradient reaches the latent inputs.

        """
        config = self.config
        kept: list[tuple[Tensor, Tensor]] = []
        with self.context.progress.stage("alternation", config.iterations) as stage:
            for iteration in range(config.iterations):
                self.student.train()
                if iteration < config.asked:
                    made = self.generator(self.latents)
                    images = self._with_random(made.detach())
                    labels = self._update_student(images, None, iteration, depends)
                    self._update_generator(made, labels[: config.generated], iteration, depends)
                    if config.asked < config.iterations:
                        kept.append((images, labels))
                else:
                    number = int(torch.randint(len(kept), (), generator=self._random))
                    self._update_student(*kept[number], iteration, depends)
                stage.advance()
        self.student.eval()
        with torch.no_grad():
            made = self.generator(self.latents)
            self._check({"output": self.student(made).sum()}, config.iterations, "the released student", depends)
            shown: Tensor = self.generator.eval()(self.latents[:SHOWN])
        return (shown * 255).round().to(torch.uint8).cpu()

    def _with_random(self, made: Tensor) -> Tensor:
        count = self.config.batch - len(made)
        if count == 0:
            return made
        return torch.cat([made, as_float(random_images(count, self.facts.shape, self._random)).to(made.device)])

    def _update_student(
        self, images: Tensor, labels: Tensor | None, iteration: int, depends: Mapping[str, Any]
    ) -> Tensor:
        """Make one step on `images`, annotated first where there are no `labels`; return the labels."""
        logits = self.student(images)
        self._check({"output": logits.sum()}, iteration, "the student", depends)
        if labels is None:
            labels = self.annotate(images, logits.detach().softmax(1))
        loss = soft_loss(logits, labels)
        self._check({"Eq. 7": loss}, iteration, "the student", depends)
        self._good = {
            f"{whose}/{name}": value.detach().clone()
            for whose, net in (("student", self.student), ("generator", self.generator))
            for name, value in net.state_dict().items()
        }
        self._student_step.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        self._student_step.step()
        return labels

    def _update_generator(self, made: Tensor, labels: Tensor, iteration: int, depends: Mapping[str, Any]) -> None:
        config = self.config
        features, logits = features_and_logits(self.discriminator, made)
        terms = generator_terms(features, logits, norm=2, reading=config.generator_loss)
        wanted = {
            "one_hot": config.one_hot_loss, "entropy": config.entropy_loss, "activation": config.activation_loss
        }  # fmt: skip
        terms = {name: term for name, term in terms.items() if wanted[name]}
        terms["Eq. 7"] = soft_loss(logits, labels)
        self._check(terms, iteration, "the generator", depends)
        self._generator_step.zero_grad(set_to_none=True)
        self.latents.grad = None
        torch.autograd.backward(torch.stack(list(terms.values())).sum())
        if iteration == 0 and config.train_latents and not _reached(self.latents):
            raise BenchError(
                "no gradient reaches the latent inputs of the generator: its images, or the discriminator's view of "
                "them, do not depend on them. Take another student, or train_latents=false."
            )
        self._generator_step.step()

    def _check(self, terms: Mapping[str, Tensor], iteration: int, what: str, depends: Mapping[str, Any]) -> None:
        try:
            check_finite(terms, iteration, what, kept=bool(self._good))
        except NotFiniteError:
            if self._good:
                arrays = {name: value.cpu().numpy() for name, value in self._good.items()}
                self.context.cache.get("last-good", depends, lambda: arrays)
            raise


def _reached(values: Tensor) -> bool:
    """Return whether any gradient has come to `values`."""
    return values.grad is not None and bool(values.grad.abs().any())
