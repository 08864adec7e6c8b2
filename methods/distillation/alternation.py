"""Algorithm 1 of DPSD as a loop: generate, annotate, update the student, update generator and latent inputs.

With ``pool_steps`` the student then keeps training on all answers while its averaged weights still improve on held-back
answers.

Private data enter only through the annotation function passed in. (DPSD-T also uses its teacher as the discriminator,
and declares this.) The weights of a resumed run already reflect earlier answers: the run charges them to the new ledger
without querying again. Seeded noise is drawn and discarded, so queries after the last checkpoint get the same answers;
secure noise is drawn afresh.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from bench.core.progress import Stage
from bench.interface import BenchError, Context, Facts, as_float, features_and_logits
from bench.methods.distillation.alternation_config import AlternationConfig
from bench.methods.distillation.answer_pool import BETWEEN, AnswerPool, as_drawn, logits_of, running_mean
from bench.methods.shared.random_images import random_images
from bench.methods.shared.settings_checks import SHOWN
from bench.methods.shared.teachers import largest_shift
from bench.models.feature_net import OnFixedMap
from bench.models.generators import DataFreeGenerator
from bench.storage.checkpoint import Checkpoint, Loop, Part
from bench.training.data_free import generator_terms
from bench.training.divergence import check_finite, descend


def soft_loss(logits: Tensor, labels: Tensor, uniform: float = 0.0) -> Tensor:
    """Return Eq. (7)'s mean cross-entropy to soft `labels` (n, classes), which need not be probabilities.

    If a share `uniform` of the labels was drawn evenly from all classes, predict the labels that are drawn, not the
    teacher's.
    """
    expected = logits.log_softmax(1) if uniform == 0 else as_drawn(logits.softmax(1), uniform).log()
    return -(labels * expected).sum(1).mean()


class Alternating:
    """One run of Algorithm 1. Losses are batch means, not the paper's sums, which leaves Adam's steps unchanged.

    A run resumes from `checkpoint`; `charge` charges the ledger for the batches that it answered before.
    """

    def __init__(
        self, config: AlternationConfig, student: nn.Module, generator: DataFreeGenerator, discriminator: nn.Module,
        annotate: Callable[[Tensor, Tensor], Tensor], facts: Facts, context: Context, checkpoint: Checkpoint,
        charge: Callable[[int], None],
    ) -> None:  # fmt: skip
        self._checkpoint, self._charge = checkpoint, charge
        self.config, self.facts, self.context = config, facts, context
        self.student, self.generator, self.discriminator = student, generator, discriminator
        self.annotate = annotate
        self._random = context.streams.torch("alternation")
        self.latents = generator.noise(config.generated, self._random, context.device).requires_grad_()
        make = torch.optim.Adam if config.optimizer == "adam" else torch.optim.SGD
        self._student_step = make(student.parameters(), lr=config.student_lr)
        trained = [*generator.parameters(), *([self.latents] if config.train_latents else [])]
        self._generator_step = make(trained, lr=config.generator_lr)
        self._mean = AveragedModel(student, avg_fn=running_mean, use_buffers=True)

    def alternate(self) -> Tensor:
        """Run all iterations and return synthetic images, uint8 (n, channels, height, width).

        Raises NotFiniteError if a loss is not finite, and BenchError if no gradient reaches the latent inputs.
        """
        config = self.config
        pool = AnswerPool()
        keep = config.asked < config.iterations or config.pool_steps > 0
        total = config.iterations + config.pool_steps
        with self.context.progress.stage("alternation", total) as stage:
            loop, first = self._go_on(pool, stage)
            for iteration in range(first, total):
                self.student.train()
                if iteration < config.asked:
                    made = self.generator(self.latents)
                    images = self._with_random(made.detach())
                    seen = self._seen(images)
                    labels = self._update_student(seen, images, None, iteration)
                    self._update_generator(made, labels[: config.generated], iteration)
                    if keep:
                        pool.batches.append((seen, labels))
                elif iteration < config.iterations:
                    seen, labels = pool.batches[int(torch.randint(len(pool.batches), (), generator=self._random))]
                    self._update_student(seen, seen, labels, iteration)
                elif not self._learn_again(pool, iteration - config.iterations):
                    stage.advance(total - iteration)
                    break
                stage.advance()
                loop.done(iteration + 1, total)
        if config.pool_steps:
            pool.look(self._mean.module, config.uniform_share)
            pool.best.restore(self.student)
        self.student.eval()
        with torch.no_grad():
            made = self.generator(self.latents)
            check_finite({"output": self.student(made).sum()}, config.iterations, "the released student")
            shown: Tensor = self.generator.eval()(self.latents[:SHOWN])
        return (shown * 255).round().to(torch.uint8).cpu()

    def _go_on(self, pool: AnswerPool, stage: Stage) -> tuple[Loop, int]:
        """Return the loop and the number of completed iterations; charge the ledger for their answers."""
        held: dict[str, Part] = {
            "student": self.student, "generator": self.generator, "latents": self.latents, "random": self._random,
            "student_step": self._student_step, "generator_step": self._generator_step, "answered": pool,
        }  # fmt: skip
        if self.config.pool_steps:
            held["mean"] = self._mean
        loop = Loop(self._checkpoint, held, device=self.context.device)
        first = loop.start(stage)
        self._charge(min(first, self.config.asked))
        pool.to(self.context.device)
        return loop, first

    def _learn_again(self, pool: AnswerPool, step: int) -> bool:
        """Take a step on the pool, or return False once the error on held-back answers no longer falls."""
        if step == 0:
            self._mean.update_parameters(self.student)  # the first update copies
        if step % BETWEEN == 0 and not pool.look(self._mean.module, self.config.uniform_share):
            return False
        shift = 0 if isinstance(self.student, OnFixedMap) else largest_shift(self.facts)
        seen, labels = pool.batch(self._random, shift)
        self._update_student(seen, seen, labels, self.config.iterations + step)
        self._mean.update_parameters(self.student)
        return True

    def _with_random(self, made: Tensor) -> Tensor:
        count = self.config.batch - len(made)
        if count == 0:
            return made
        drawn = random_images(count, self.facts.shape, self._random, self.config.random_kind)
        return torch.cat([made, as_float(drawn).to(made.device)])

    def _seen(self, images: Tensor) -> Tensor:
        """Return the input of the student's trained part: features of its frozen map, or `images` without one."""
        if not isinstance(self.student, OnFixedMap):
            return images
        with torch.no_grad():
            return self.student.forward_features(images)

    def _update_student(self, seen: Tensor, images: Tensor, labels: Tensor | None, iteration: int) -> Tensor:
        """Update the student on its inputs `seen` with `labels`; if None, the teacher annotates `images`."""
        logits = logits_of(self.student, seen)
        check_finite({"output": logits.sum()}, iteration, "the student")
        if labels is None:
            labels = self.annotate(images, logits.detach().softmax(1))
        loss = soft_loss(logits, labels, self.config.uniform_share)
        check_finite({"Eq. 7": loss}, iteration, "the student")
        descend(self._student_step, loss)
        return labels

    def _update_generator(self, made: Tensor, labels: Tensor, iteration: int) -> None:
        config = self.config
        features, logits = features_and_logits(self.discriminator, made)
        terms = generator_terms(features, logits, norm=2, reading=config.generator_loss)
        wanted = {"one_hot": config.one_hot_loss, "entropy": config.entropy_loss, "activation": config.activation_loss}
        terms = {name: term for name, term in terms.items() if wanted[name]}
        if config.labels_reach_generator:
            terms["Eq. 7"] = soft_loss(logits, labels, config.uniform_share)
        check_finite(terms, iteration, "the generator")
        self._generator_step.zero_grad(set_to_none=True)
        self.latents.grad = None
        torch.autograd.backward(torch.stack(list(terms.values())).sum())
        if iteration == 0 and config.train_latents and not _reached(self.latents):
            raise BenchError(
                "no gradient reaches the latent inputs of the generator: its images, or the discriminator's view of "
                "them, do not depend on them. Take another student, or train_latents=false."
            )
        self._generator_step.step()


def _reached(values: Tensor) -> bool:
    return values.grad is not None and bool(values.grad.abs().any())
