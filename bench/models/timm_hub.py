"""Weights from timm's hub."""

from __future__ import annotations

import os
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

import timm
import torch
from torch import Tensor

from bench.core.errors import BenchError
from bench.core.fetch_progress import Progress

ANSWER_SECONDS = 6.0
"""Time limit for the hub's first answer; its client would retry for most of a minute."""

SOURCES = {"in1k": "imagenet", "in12k": "imagenet-21k", "in21k": "imagenet-21k", "in22k": "imagenet-21k"}
"""Public data set by part of a timm tag; ImageNet-12k is a subset of ImageNet-21k."""

OTHERS = (
    "ig", "yfcc", "jft", "laion", "openai", "clip", "mclip", "tinyclip", "metaclip", "webli", "dfn", "lvd", "m30m",
    "m38m", "seer", "swag", "sa1b", "datacomp", "merged", "cc12m", "ssld", "swsl", "wsl", "ssl", "indomain", "inw21k",
)  # fmt: skip
"""Prefixes of tag parts that name other data, mostly not public."""


def trained_on(tag: str) -> str:
    """Return the largest public data set that a timm tag names; "" if it names none, or also names other data."""
    parts = tag.split("_")
    named = [SOURCES[part] for part in parts if part in SOURCES]
    if not named or any(part.startswith(OTHERS) for part in parts):
        return ""
    return max(named, key=len)


def fetch_from_hub(backbone: str, packages: Sequence[str], say: Progress) -> tuple[dict[str, Tensor], str]:
    """Return the hub's state dict of `backbone` and its source; on failure, BenchError suggests `packages` instead."""
    config: Any = timm.get_pretrained_cfg(backbone)
    if config is None or not config.has_weights:
        raise BenchError(
            f"timm names no weights of {backbone} on a hub. {_else(packages)} Other tags and models: "
            "timm.list_models(pretrained=True)."
        )
    place = config.hf_hub_id or config.url or config.file
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co") if config.hf_hub_id else str(config.url or "")
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    say(f"fetching weights of {backbone}: {place}", 0, None)
    # Offline, the client reads only its cache and fails at once.
    if not offline and endpoint.startswith("http") and not answers(endpoint):
        raise BenchError(
            f"could not fetch weights of {backbone}: {endpoint} does not answer. {_else(packages)} "
            "HF_HUB_OFFLINE=1 uses the hub's own cache."
        )
    try:
        with torch.random.fork_rng(devices=[]):  # keep the caller's random state
            model = timm.create_model(backbone, pretrained=True)
    except Exception as error:
        # timm has several clients, each with its own errors.
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise BenchError(f"could not fetch weights of {backbone} ({place}): {reason}. {_else(packages)}") from error
    return dict(model.state_dict()), f"timm hub {place}"


def _else(packages: Sequence[str]) -> str:
    return f"Without a hub: a backbone whose weights are in a package ({', '.join(packages)}) or weights=file:PATH."


def answers(endpoint: str) -> bool:
    """Return whether `endpoint` answers in time, even with a refusal, through the environment's proxies."""
    answers: list[bool] = []

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=ANSWER_SECONDS).close()
            answers.append(True)
        except (OSError, ValueError) as error:
            answers.append(isinstance(error, urllib.error.HTTPError))

    # Use a thread, because without a network name resolution has no timeout.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS + 1)
    return answers == [True]
