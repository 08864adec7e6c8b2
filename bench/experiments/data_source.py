"""Data sets by name, loaded once per process, with a progress display for downloads."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterator

from bench.core.errors import telling
from bench.core.fetch_progress import Progress as FetchProgress
from bench.core.printable import counted
from bench.core.progress import Progress, Stage
from bench.core.types import Facts
from bench.data.datasets import load
from bench.data.image_folder import unread
from bench.data.own_arrays import is_features
from bench.data.own_name import PREFIX, parse
from bench.data.spec import Loaded
from bench.data.splits import Materialised, Split, facts, map_images, materialise, split
from bench.experiments.plan import Dataset


class DataSource:
    """Loads data sets by name, each only once."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._opened: dict[str, tuple[Loaded, Split]] = {}
        self._material: dict[str, Materialised] = {}

    def _open(self, name: str) -> tuple[Loaded, Split]:
        if name not in self._opened:
            with fetch_display(self._progress, name) as tell:
                loaded = load(name, progress=tell)
            self._opened[name] = loaded, split(loaded)
        return self._opened[name]

    def describe(self, name: str) -> Dataset:
        """Return the facts and the revision of the data set `name`; download it if it is absent.

        For a user's own data, print what was read, so that the user can check it.
        """
        new = name not in self._opened
        loaded, parts = self._open(name)
        known = facts(loaded, parts)
        if new and name.startswith(PREFIX):
            self._progress.say(_summary(loaded, known))
        return Dataset(name, known, loaded.revision)

    def material(self, name: str, *, anew: bool = False) -> Materialised:
        """Return the data set `name`: memory-mapped if it is a set of files, otherwise in memory.

        With `anew`, tensors in memory are copied again from what was read.
        """
        if name not in self._material or anew:
            with telling("the data cannot be read"):
                loaded, parts = self._open(name)
                with fetch_display(self._progress, name, "is decoded once") as tell:
                    loaded = map_images(loaded, tell)
                self._material[name] = materialise(loaded, parts)
        return self._material[name]


def _summary(loaded: Loaded, known: Facts) -> str:
    """Summarise a user's data: what was read, what is public, and what records leave out. All facts are public."""
    spec, values = loaded.spec, parse(loaded.spec.name).values
    names, (channels, height, width) = spec.class_names, known.shape
    what = f"rows of {width} features" if is_features(known.shape) else f"images, {channels} x {height} x {width}"
    if values:
        what += f", values {values[0]:g} to {values[1]:g} in 256 levels"
    lines = {
        "read": f"{what}; {len(loaded.train)} to train on, {len(loaded.test)} to test on",
        "classes": f"{known.classes}: {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}",
        "private": f"{known.private_records} records",
        "public": f"class names, sizes, numbers of records; {counted(known.public_records, 'record')} without labels, "
        "for methods that need public data: no epsilon covers them",
        "test": f"{known.test_records} records; the accuracy on them is stated without noise",
        "withheld": known.disclosure.withheld,
    }
    if beside := unread(parse(loaded.spec.name).path):
        lines["not read"] = ", ".join(f"{one}/" for one in beside)
    fold = textwrap.TextWrapper(79, subsequent_indent=" " * 12, break_long_words=False, break_on_hyphens=False)
    return "\n".join([known.dataset, *(fold.fill(f"  {name:<9} {text}") for name, text in lines.items())])


@contextlib.contextmanager
def fetch_display(
    progress: Progress, name: str, said: str = "is not on this machine yet: fetching it once"
) -> Iterator[FetchProgress]:
    """Yield the progress callback for a data set's loader; without a download it shows nothing."""
    with contextlib.ExitStack() as open_stages:
        stage: Stage | None = None
        doing, shown = "", 0

        def tell(what: str, done: int, total: int | None) -> None:
            nonlocal stage, doing, shown
            if what != doing:
                open_stages.close()
                if not doing and not name.startswith(PREFIX):
                    progress.say(f"{name} {said}")
                stage = open_stages.enter_context(progress.stage(what, total or 1))
                doing, shown = what, 0
            if stage is not None:
                stage.advance(done - shown)
                shown = done

        yield tell
