"""DPSD's annotation: Eq. (2)'s gradient, its bounding and noise (Eq. 3). Only `released_gradients` charges."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from bench.core import margins
from bench.interface import Ledger

Distillation = Literal["decoupled", "dkd", "plain"]  # the loss of Eq. (2), see `distillation_loss`
Bounding = Literal["normalise", "clip"]
Reading = Literal["per-example", "batch-mean", "batch-norm"]  # of Eq. (3), see `released_gradients`

LEAST = 1e-6  # least distance of probabilities from 0 and 1, where the loss has no gradient


def distillation_loss(teacher: Tensor, student: Tensor, kind: Distillation, weight: float) -> Tensor:
    """Return each example's loss of Eq. (2), (n,), from the probabilities of teacher and student, (n, classes).

    ``decoupled`` is Eq. (2) as printed, whose non-target term divides p_j by 1 - p_j; ``dkd`` divides it by 1 - p_r as
    in the work it cites (Zhao et al., CVPR 2022); ``plain`` is Fig. 6's classic distillation. `weight` is lambda.
    """
    teacher, student = teacher.clamp(LEAST, 1 - LEAST), student.clamp(LEAST, 1 - LEAST)
    if kind == "plain":
        return (teacher * (teacher / student).log()).sum(1)
    target = teacher.argmax(1, keepdim=True)
    p, q = teacher.gather(1, target), student.gather(1, target)
    of_target = (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log())[:, 0]
    rest_p, rest_q = (1 - p, 1 - q) if kind == "dkd" else (1 - teacher, 1 - student)
    others = torch.ones_like(teacher).scatter(1, target, 0.0)
    of_others = (others * (teacher / rest_p) * (teacher * rest_q / (student * rest_p)).log()).sum(1)
    return of_target + weight * of_others


def distillation_gradient(teacher: Tensor, student: Tensor, kind: Distillation, weight: float) -> Tensor:
    """Return :func:`distillation_loss`'s gradient (n, classes) in the student's probabilities (Section III)."""
    given = student.detach().clamp(LEAST, 1 - LEAST).requires_grad_()
    with torch.enable_grad():
        loss = distillation_loss(teacher.detach(), given, kind, weight).sum()
        gradient: Tensor = torch.autograd.grad(loss, given)[0]
    return gradient


def keep_top(values: Tensor, k: int) -> Tensor:
    """Return `values` (n, classes), zero except for the `k` entries largest in magnitude (p_r's entry is negative)."""
    kept = values.abs().topk(k, dim=1).indices
    return torch.zeros_like(values).scatter(1, kept, values.gather(1, kept))


def bounded(gradients: Tensor, how: Bounding, bound: float, stability: float, whole: bool = False) -> Tensor:
    """Return `gradients` (n, classes) in units of `bound`, each with L2 norm at most 1, zero if not finite.

    ``normalise`` divides by the norm plus `stability` (h of Eq. 3); ``clip`` rescales those longer than `bound`. With
    `whole` the norm is that of all n together.
    """
    # Double precision and a margin above its rounding ensure that no norm exceeds 1.
    gradients = gradients.double().nan_to_num(0.0, 0.0, 0.0)
    norms: Tensor = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
    if whole:
        norms = torch.linalg.vector_norm(norms)  # of norms, so that no sum is long
    if how == "clip":
        return gradients / (norms.clamp_min(bound) * margins.FLOAT64)
    return gradients / ((norms + stability) * margins.FLOAT64)


def gradient_sensitivity(kind: Distillation, classes: int, k: int, weight: float) -> float:
    """Return a bound on the L2 distance between two teachers' :func:`bounded` gradients for one query, at most 2.

    Both see the same student q. Bounded gradients u, v have norm at most 1, so ``|u - v|^2 <= 2 - 2 <u, v>``: the bound
    is sqrt(2) if no entries have opposite signs. For ``plain`` and, if `weight` >= 1, for ``dkd`` all entries are at
    most 0. For ``decoupled`` only the entry of the teacher's class r can be positive, namely
    ``(q_r - p_r) / (q_r (1 - q_r))`` if q_r > p_r; the others are ``-weight p_j / ((1 - p_j) q_j (1 - q_j))``.

    Let D = 1 - q_r, f_j = q_j (1 - q_j) and m = k - 1. The others x_j satisfy ``sum |x_j| f_j >= weight (1 - p_r)``, so
    the norm of the m largest is at least weight (1 - p_r) / ||f||, with ||f|| in the dual, m-support norm.
    Probabilities sum to 1 and are at least :data:`LEAST` (L), so f is at most L, plus D - L on one entry:
    ``||f|| <= D - L + L (classes - 1) / sqrt(m)``. As (1 - p_r) / (q_r - p_r) >= 1 / q_r, the positive entry is at most
    1 / R of the m largest, ``R = weight D / ||f||``, and at most ``s = 1 / sqrt(1 + R^2)`` of the gradient.

    If one gradient has a positive entry, ``<u, v> >= -s`` with the smallest R, at D = L: weight sqrt(m) / (classes -
    1). If both have one at the same class, ``<u, v> >= 0``; at two classes r and t, ``<u, v> >= -2 s sqrt(1 - s^2)``,
    but then q_t > 1 / classes, so D > 1 / classes. `slack` bounds how far float32 softmax sums are from 1. Without
    `slack`, pairs of teachers come within 0.3% of the bound for 10 classes and k 3 (one is in the tests).

    The bound holds for a batch divided by its norm too: there ``<u, v>`` is a sum over its queries of the inner product
    of two directions, at least ``-c`` with ``bound^2 = 2 + 2 c``, times two lengths whose products sum to at most 1.
    """
    if kind == "plain" or (kind == "dkd" and weight > 1.01):
        return math.sqrt(2)
    if kind == "dkd" or k < 2:
        return 2.0
    slack = (classes + 2) * 2.0**-24
    spread = LEAST * (classes - 1) / math.sqrt(k - 1)

    def share(rest: float, mass: float) -> float:
        """Return s for 1 - q_r = `rest` and 1 - p_r >= `mass`."""
        ratio = weight * rest / (rest - LEAST + spread + slack) / (1 + slack / mass)
        return 1 / math.sqrt(1 + (ratio / (1 + 1e-5)) ** 2)  # 1e-5: the gradient's float32 rounding

    alone, both = share(LEAST, (classes - 1) * LEAST), share(1 / classes, 1 / classes)
    both = 2 * both * math.sqrt(1 - both**2) if both**2 < 0.5 else 1.0
    return math.sqrt(2 + 2 * max(alone, both))


def answers_per_batch(images: int, reading: Reading) -> int:
    """Return how many bounded gradients a batch of `images` releases: one under ``batch-norm``, else one per image."""
    return 1 if reading == "batch-norm" else images


def released_gradients(
    gradients: Tensor, ledger: Ledger, *, beta: float, sigma: float, sensitivity: float, answers: int, reading: Reading
) -> Tensor:
    """Return Eq. (3)'s noisy gradients, (n, classes): bounded gradients times `beta` plus noise from the ledger.

    `gradients` (n, classes) are sums over `answers` teachers of bounded gradients in units of beta; the result is their
    mean. One privacy unit changes one teacher, hence each row by up to `sensitivity` in L2, or all rows together under
    ``batch-norm``. The noise on the sum has standard deviation sigma * beta. Under ``batch-mean``, the sum over the
    batch in Eq. (3), all examples get the mean of the noisy gradients. The cost is one charge of noise multiplier
    ``sigma / (sensitivity sqrt(m))`` with m of :func:`answers_per_batch`.
    """
    rows = len(gradients)
    # Noise and sensitivity are in units of beta, which only rescales the answer.
    given = gradients.double().numpy()
    spread = math.sqrt(answers_per_batch(rows, reading))
    multiplier = sigma / (sensitivity * spread)
    if reading != "batch-mean":
        noisy = ledger.gaussian(given, sensitivity=sensitivity * spread, noise_multiplier=multiplier)
    else:
        summed = ledger.gaussian(given.sum(0), sensitivity=sensitivity * rows, noise_multiplier=multiplier)
        noisy = (summed / rows)[None].repeat(rows, axis=0)
    return torch.from_numpy(noisy * beta / answers).float()
