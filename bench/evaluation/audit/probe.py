"""A net's and a loss's results on given records, to compare the code inside DP-SGD between two runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch

from bench.core.transforms import as_float
from bench.evaluation.check.fingerprint import fingerprint
from bench.privacy.dpsgd.dp_sgd import known_labels
from bench.privacy.dpsgd.example_checks import random_images
from bench.privacy.dpsgd.example_gradients import ExampleGradients

RECORDS = 16


def probed(
    model: torch.nn.Module, loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    images: torch.Tensor, labels: torch.Tensor,
) -> str:  # fmt: skip
    """Return a fingerprint of the outputs, gradients and buffers of ``loss(model(probe), targets)`` in two passes.

    The first pass gets `images` (n, ...) with `labels` (n,), those of the recorded run. The second gets a few of them
    after :data:`RECORDS` random ones of their kind, the same in every call. Code that distinguishes the run's records
    from others behaves differently in the second pass. Weights, gradients, buffers and random states stay unchanged.
    """
    draws = torch.Generator().manual_seed(RECORDS)
    drawn = random_images(images, RECORDS, draws)
    targets = torch.randint(2**16, (RECORDS,), generator=draws)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    device = next(model.parameters()).device
    kept = [(value, value.clone()) for value in model.buffers()]
    with torch.random.fork_rng([device] if device.type == "cuda" else []), contextlib.ExitStack() as stack:
        for watcher in _watchers(model):
            stack.enter_context(watcher.paused())
        mixed = torch.cat([drawn, images[:RECORDS]])
        found = []
        for given in (mixed, images):
            torch.manual_seed(RECORDS)
            outputs = model(as_float(given.to(device)))
            classes = outputs.shape[1] if outputs.dim() > 1 and outputs.shape[1] > 1 else 2
            random = torch.cat([(targets % classes).to(labels.dtype), labels[:RECORDS]])
            wanted = (random if given is mixed else labels).to(device)
            mean = loss(outputs, known_labels(wanted, outputs))
            buffers = [value.clone() for value in model.buffers()]
            found += [outputs, *torch.autograd.grad(mean, trained, allow_unused=True), *buffers]
        printed = fingerprint(found)
    with torch.no_grad():
        for value, before in kept:
            value.copy_(before)
    return printed


def _watchers(model: torch.nn.Module) -> set[ExampleGradients]:
    """Return the objects that watch passes of `model` for DP-SGD."""
    hooks = [hook for layer in model.modules() for hook in layer._forward_hooks.values()]
    owners = (getattr(hook, "__self__", None) for hook in hooks)
    return {owner for owner in owners if isinstance(owner, ExampleGradients)}
