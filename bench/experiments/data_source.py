"""Data sets by name, loaded once per process, with a progress display for downloads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from bench.core.errors import telling
from bench.core.fetch_progress import Progress as FetchProgress
from bench.core.progress import Progress, Stage
from bench.core.types import Facts
from bench.data.datasets import load
from bench.data.image_folder import PREFIX
from bench.data.spec import Loaded
from bench.data.splits import Materialised, Split, facts, map_images, materialise, split
from bench.experiments.plan import Dataset


class DataSource:
    """Loads data sets by name, each only once."""

    def __init__(self, progress: Progress, *, fetch: bool = True) -> None:
        self._progress, self._fetch = progress, fetch
        self._opened: dict[str, tuple[Loaded, Split]] = {}
        self._material: dict[str, Materialised] = {}

    def _open(self, name: str) -> tuple[Loaded, Split]:
        if name not in self._opened:
            with fetch_display(self._progress, name) as tell:
                loaded = load(name, fetch=self._fetch, progress=tell)
            self._opened[name] = loaded, split(loaded)
        return self._opened[name]

    def describe(self, name: str) -> Dataset:
        """Return the facts and the revision of the data set `name`; download it if it is absent.

        For a user's folder, print the classes and the number of images, so that the user can check the folder.
        """
        new = name not in self._opened
        loaded, parts = self._open(name)
        known = facts(loaded, parts)
        if new and name.startswith(PREFIX):
            self._progress.say(_summary(loaded, known))
        return Dataset(name, known, loaded.revision)

    def material(self, name: str) -> Materialised:
        """Return the data set `name`: memory-mapped if it is a set of files, else in memory."""
        if name not in self._material:
            with telling("the data cannot be read"):
                loaded, parts = self._open(name)
                with fetch_display(self._progress, name, "is decoded once") as tell:
                    loaded = map_images(loaded, tell)
                self._material[name] = materialise(loaded, parts)
        return self._material[name]


def _summary(loaded: Loaded, known: Facts) -> str:
    """Return the public facts of a folder in words; the number of images per class is not public."""
    names = loaded.spec.class_names
    more = ", ..." if len(names) > 10 else ""
    return (
        f"{known.dataset}: {known.classes} classes ({', '.join(names[:10])}{more}); {known.private_records} private, "
        f"{known.public_records} public and {known.test_records} test images, {'x'.join(map(str, known.shape))}"
    )


@contextlib.contextmanager
def fetch_display(
    progress: Progress, name: str, said: str = "is not here yet: fetching it once"
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
