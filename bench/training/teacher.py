"""Train one teacher on its part of the private records, and predict with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bench.core.precision import Precision, arithmetic, check_precision
from bench.core.seeds import Streams, seeded
from bench.models.build import build
from bench.storage.checkpoint import Checkpoint
from bench.training.data_parallel import fit_on_devices
from bench.training.loop import FitSettings, fit, predict
from bench.training.processes import one_thread

Labels = NDArray[np.int64]
Arrays = dict[str, NDArray[Any]]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class TeacherTask:
    """Settings that all teachers of an ensemble share: net, public facts of the data, training."""

    model: str
    classes: int
    settings: FitSettings
    options: Mapping[str, Any] = field(default_factory=dict)  # Further options of the net's entry point.
    device: str = "cpu"
    precision: Precision = "float32"
    devices: tuple[str, ...] = ()  # Each batch of a teacher is split over these.
    batch_statistics: bool = False  # Whether a trained teacher's batch norms use the statistics of the queries.
    standardised: bool = False  # Whether logits are standardised over the queries, class by class.
    batched: bool | None = None
    """Run many teachers as one program (None: on a GPU); weights equal the loop's up to rounding."""

    def __post_init__(self) -> None:
        check_precision(self.precision, self.device)

    @property
    def bf16(self) -> bool:
        """Whether forward passes run in bfloat16."""
        return self.precision == "bf16"

    @property
    def together(self) -> bool:
        """Whether many teachers run as one program if their net allows it."""
        if len(self.devices) > 1:
            return False
        return self.batched if self.batched is not None else torch.device(self.device).type == "cuda"


def train_teacher(
    task: TeacherTask,
    images: Tensor,
    labels: Tensor,
    streams: Streams,
    watched: Tensor | None = None,
    checkpoint: Checkpoint | None = None,
) -> Arrays:
    """Train one teacher on its own part, `images` (uint8) with `labels` (int64); return its weights by name.

    `streams` must be the teacher's own; `watched` are the public images for `settle`. Classes that the part lacks
    remain outputs, so that the shape of the votes does not depend on private records.
    """
    start = streams.torch("weights")
    with one_thread(), arithmetic(task.precision, task.device), seeded(start):
        model = build(task.model, task.classes, images.shape[1], (images.shape[2], images.shape[3]), **task.options)
        order = streams.torch("order")
        # A diverged teacher still votes: an error would let one record decide whether there is a student.
        if len(task.devices) > 1:
            fit_on_devices(model, images[:], labels, task.settings, order, task.devices, task.precision)
        else:
            fit(
                model, images, labels, task.settings, order, device=task.device, bf16=task.bf16, must_converge=False,
                watched=watched, checkpoint=checkpoint,
            )  # fmt: skip
    return {name: value.detach().cpu().contiguous().numpy() for name, value in model.state_dict().items()}


def teacher_labels(task: TeacherTask, shape: tuple[int, int, int], state: Arrays, images: Tensor) -> Labels:
    """Return the labels (n,) of `images` from the teacher with weights `state`."""
    with one_thread(), arithmetic(task.precision, task.device):
        logits = predict(rebuilt(task, shape, state), images, device=task.device, bf16=task.bf16)
    return answered(task, logits).argmax(1).numpy()


def answered(task: TeacherTask, logits: Tensor) -> Tensor:
    """Return the `logits` (..., queries, classes) of each teacher as `task` wants them; teachers stay independent."""
    if not task.standardised:
        return logits
    # Far from the records, most teachers favour one class for every image; only differences between images matter.
    centred = logits - logits.mean(-2, keepdim=True)
    return centred / centred.square().mean(-2, keepdim=True).sqrt().clamp_min(1e-6)


def rebuilt(task: TeacherTask, shape: tuple[int, int, int], state: Arrays) -> nn.Module:
    """Return the net with weights `state`, in evaluation mode."""
    with torch.random.fork_rng([]):  # overwritten initial weights must not advance the RNG
        model = build(task.model, task.classes, shape[0], shape[1:], **task.options)
    model.load_state_dict({name: torch.as_tensor(array) for name, array in state.items()})
    if task.batch_statistics:
        for layer in model.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                layer.running_mean = layer.running_var = None
    return model.eval()
