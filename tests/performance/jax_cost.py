"""Times of a plain step and of one of jax_privacy, for nets of cost.py; needs jax_privacy, but not this project.

`python tests/performance/jax_cost.py NET BATCH` prints both as JSON: seconds of processor time of one core, the least
of some steps in turns. The private step is the fastest of several microbatches; jax_privacy leaves them to its user.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax_privacy import clipped_grad
from jax_privacy.noise_addition import gaussian_privatizer

NOISE, NORM, STEPS = 1.0, 0.1, 12  # as in cost.py
MICROBATCHES = 16, 64  # a whole batch of 512 takes three to ninety times as long
Weights = list[tuple[jax.Array, jax.Array]]
Layer = tuple[int, ...]


def convolved(weights: tuple[jax.Array, jax.Array], x: jax.Array, stride: int, padding: int) -> jax.Array:
    """Return a convolution of `x` (n, height, width, channels), with its bias."""
    around, axes = [(padding, padding)] * 2, ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, weights[0], (stride, stride), around, dimension_numbers=axes) + weights[1]


def pooled(x: jax.Array) -> jax.Array:
    """Return maxima over windows of 2x2 at each place."""
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "VALID")


def normed(x: jax.Array) -> jax.Array:
    """Return `x` (n, 7, 7, 81) normalised in groups of three channels."""
    groups = x.reshape(len(x), 7, 7, 27, 3)
    apart = groups - groups.mean((1, 2, 4), keepdims=True)
    return (apart / jnp.sqrt((apart**2).mean((1, 2, 4), keepdims=True) + 1e-5)).reshape(x.shape)


def dense(weights: Weights, x: jax.Array) -> jax.Array:
    """Return a net of linear layers with tanh in between."""
    x = x.reshape(len(x), -1)
    for matrix, bias in weights[:-1]:
        x = jnp.tanh(x @ matrix + bias)
    return x @ weights[-1][0] + weights[-1][1]


def scattering_linear(weights: Weights, x: jax.Array) -> jax.Array:
    """The net of that name in cost.py."""
    return dense(weights, normed(x))


def scattering_cnn(weights: Weights, x: jax.Array) -> jax.Array:
    """The net of that name in cost.py."""
    x = jnp.tanh(convolved(weights[0], normed(x), 2, 1))
    return dense(weights[2:], jnp.tanh(convolved(weights[1], x, 1, 1)))


def tanh_cnn_mnist(weights: Weights, x: jax.Array) -> jax.Array:
    """The net of that name in bench.models.classifiers."""
    x = pooled(jnp.tanh(convolved(weights[0], x, 2, 2)))
    return dense(weights[2:], pooled(jnp.tanh(convolved(weights[1], x, 2, 0))))


NETS: dict[str, tuple[Callable[[Weights, jax.Array], jax.Array], Layer, list[Layer]]] = {
    "scattering_linear": (scattering_linear, (7, 7, 81), [(3969, 10)]),
    "scattering_cnn": (scattering_cnn, (7, 7, 81), [(3, 3, 81, 16), (3, 3, 16, 32), (512, 32), (32, 10)]),
    "tanh_cnn_mnist": (tanh_cnn_mnist, (28, 28, 1), [(8, 8, 1, 16), (4, 4, 16, 32), (512, 32), (32, 10)]),
}
"""Nets with the shape of an input and of their weights."""


def main() -> None:
    """Print the seconds."""
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    net, shape, layers = NETS[sys.argv[1]]
    count = int(sys.argv[2])
    keys = jax.random.split(jax.random.key(0), len(layers) + 1)
    images, labels = jax.random.uniform(keys[0], (count, *shape)), jnp.arange(count) % 10
    weights = [
        (jax.random.normal(key, layer) * 0.05, jnp.zeros(layer[-1]))
        for key, layer in zip(keys[1:], layers, strict=True)
    ]

    def loss(weights: Weights, images: jax.Array, labels: jax.Array) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(net(weights, images), labels).mean()

    descent = optax.sgd(0.1, momentum=0.9)
    noise = gaussian_privatizer(stddev=NOISE * NORM / count, prng_key=jax.random.key(1))

    @partial(jax.jit, donate_argnums=0)
    def plain(state: Any, images: jax.Array, labels: jax.Array) -> Any:
        weights, slow, kept = state
        moves, slow = descent.update(jax.grad(loss)(weights, images, labels), slow)
        return optax.apply_updates(weights, moves), slow, kept

    def private(microbatch: int) -> Any:
        clipped = clipped_grad(
            loss, l2_clip_norm=NORM, batch_argnums=(1, 2), normalize_by=count, microbatch_size=microbatch
        )

        @partial(jax.jit, donate_argnums=0)
        def step(state: Any, images: jax.Array, labels: jax.Array) -> Any:
            weights, slow, kept = state
            noisy, kept = noise.update(clipped(weights, images, labels), kept)
            moves, slow = descent.update(noisy, slow)
            return optax.apply_updates(weights, moves), slow, kept

        return step

    steps = [("plain", plain), *(("private", private(size)) for size in MICROBATCHES if size <= count)]
    states = [jax.tree.map(jnp.copy, (weights, descent.init(weights), noise.init(weights))) for _ in steps]
    least = {"plain": math.inf, "private": math.inf}
    for _ in range(STEPS):
        for place, (name, step) in enumerate(steps):
            begun = time.process_time()
            states[place] = jax.block_until_ready(step(states[place], images, labels))
            least[name] = min(least[name], time.process_time() - begun)
    print(json.dumps(least))


if __name__ == "__main__":
    main()
