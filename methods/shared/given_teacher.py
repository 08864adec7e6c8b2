"""A given teacher: a user's trained model and the number of its training records, without the records.

Only the records that trained it are private: the data set gives classes, image shape and test images. One record may
change the whole teacher, hence every answer, as for a teacher trained here. The user's record also holds values that
depend on the teacher, notably its file's SHA-256; no epsilon covers these.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from bench.core.lazy import LazyModule
from bench.core.progress import SILENT, Stage
from bench.interface import BenchError, Context, Facts, GivenTeacher, predict, setting
from bench.methods.shared.start_config import RANDOM, PublicStartConfig
from bench.methods.shared.starts_public import StartsPublic

if TYPE_CHECKING:
    from bench.models import given_teacher as teachers
else:
    teachers = LazyModule("bench.models.given_teacher")  # with timm, which plans do not need


@dataclass(frozen=True)
class GivenTeacherConfig(PublicStartConfig):
    """Settings of a given teacher, whose net is `teacher`."""

    teacher_weights: str = setting(
        "", "ours: package (a registry's, public) or file:PATH of safetensors: a trained teacher; empty: trained here",
        later=True,
    )  # fmt: skip
    teacher_weights_sha256: str = setting("", "ours: the expected SHA-256 of the weights; filled in", later=True)
    teacher_records: int | None = setting(None, "ours: private records that trained a given teacher", later=True, ge=1)
    teacher_size: int | None = setting(
        None, "ours: pixels per side of a given teacher's input; none: timm's; 0: the data's images", later=True, ge=0
    )


def given_teacher(config: GivenTeacherConfig) -> GivenTeacher | None:
    """Return the given teacher of `config`; see :meth:`bench.interface.Method.given_teacher`."""
    weights, records, size = config.teacher_weights, config.teacher_records, config.teacher_size
    if weights and config.teacher_init != RANDOM:
        raise BenchError("a given teacher is already trained: leave out teacher_weights or teacher_init.")
    if not weights:
        if (records, size, config.teacher_weights_sha256) != (None, None, ""):
            raise BenchError(
                "teacher_records, teacher_size and teacher_weights_sha256 describe a given teacher: set "
                "teacher_weights too, to package or file:PATH, or leave them out."
            )
        return None
    if weights != "package" and not weights.startswith("file:"):
        raise BenchError(f"teacher_weights={weights} is not understood: write package or file:PATH.")
    if records is None or records < 1:
        raise BenchError(
            "a given teacher needs teacher_records, the number of private records that trained it, 1 or more, not "
            f"{'none' if records is None else records}: delta and the limits of settings follow from it."
        )
    if size is not None and not 0 <= size <= 4096:
        raise BenchError(f"teacher_size must lie in 0..4096, not {size}.")
    return GivenTeacher(config.teacher, weights, config.teacher_weights_sha256, size, records)


class TakesTeacher(StartsPublic):
    """A method whose teacher may be given."""

    def given_teacher(self) -> GivenTeacher | None:
        return given_teacher(self.config)

    def pin_teacher(self) -> Any:
        """Return `config` with the teacher's digest and, for an ensemble, one teacher."""
        given = given_teacher(self.config)
        if given is None:
            return super().pin_teacher()

        found = teachers.pin(given, self.facts)
        alone = {"teachers": 1} if hasattr(self.config, "teachers") else {}
        return dataclasses.replace(
            self.config, teacher_weights=found.weights, teacher_weights_sha256=found.sha256, **alone
        )


def given_net(config: GivenTeacherConfig, facts: Facts, context: Context) -> teachers.GivenNet | None:
    """Return the given teacher on the context's device, None if it is trained here. Private."""
    given = given_teacher(config)
    if given is None:
        return None

    net = teachers.load_given(given, facts, lambda what, done, total: context.progress.say(what) if done == 0 else None)
    context.note(
        f"the teacher was given: {given.net}, SHA-256 {given.sha256}; private are the {given.records:,} records that "
        "trained it, none of them here"
    )
    return net.to(context.device)


class OneTeacher:
    """A given teacher in place of an ensemble."""

    def __init__(self, net: teachers.GivenNet, context: Context) -> None:
        self._net, self._device = net, context.device

    def __len__(self) -> int:
        return 1

    def logits(self, images: Tensor, stage: Stage = SILENT) -> Tensor:
        """Return its logits (1, n, classes) of uint8 `images` (n, channels, height, width)."""
        logits = predict(self._net, images, device=self._device)[None]
        stage.advance()
        return logits
