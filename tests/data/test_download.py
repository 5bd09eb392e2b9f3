import gzip
import hashlib
import http.server
import io
import os
import re
import socket
import subprocess
import tarfile
import threading
from dataclasses import replace

import pytest
from forked import Forked
from test_cifar import SMALL, make_folder

from particleaugment.data import download
from particleaugment.data.cifar import CIFAR10, read_cifar
from particleaugment.data.download import ARCHIVES, Archive, DownloadError, fetch

LAYOUT = replace(SMALL["cifar10"], train_rows=10)


class Server(http.server.ThreadingHTTPServer):
    """Serves one archive and remembers what it was asked for; ``breaks`` cuts off the next answers after so much."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.ranges, self.breaks, self.asked = b"", True, [], []
        self.status, self.announced, self.shift = None, None, 0


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server = self.server
        wanted = self.headers.get("Range")
        server.asked.append(wanted)
        if server.status:
            return self.send_error(server.status)
        start = 0
        if wanted and server.ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) + server.shift
            if start >= len(server.content):
                return self.send_error(416)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}")
        else:
            self.send_response(200)
        body = server.content[start:]
        self.send_header("Content-Length", str(len(body) if server.announced is None else server.announced))
        self.end_headers()
        if server.breaks:
            self.wfile.write(body[: server.breaks.pop(0)])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        else:
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = make_folder(tmp_path_factory.mktemp("source"), LAYOUT)
    (folder / "readme.html").write_text("<p>not needed</p>")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.add(folder, LAYOUT.folder)
    return buffer.getvalue()


def archive_for(content, server=None, url=None, layout=LAYOUT):
    url = url or f"http://127.0.0.1:{server.server_address[1]}/~kriz/small.tar.gz"
    if server is not None:
        server.content = content
    return Archive(layout=layout, url=url, md5=hashlib.md5(content).hexdigest(), size=len(content))


def get(archive, directory, **options):
    return fetch("cifar10", directory, archive=archive, pause=0.0, **options)


def fails(archive, directory, match, **options):
    with pytest.raises(DownloadError, match=match) as error:
        get(archive, directory, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def files(directory):
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if not path.is_dir())


def test_published_numbers():
    assert ARCHIVES["cifar10"].url == "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
    assert ARCHIVES["cifar10"].layout is CIFAR10
    assert ARCHIVES["cifar100"].url == "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"
    assert all(re.fullmatch("[0-9a-f]{32}", archive.md5) for archive in ARCHIVES.values())


def test_a_download_ends_in_a_readable_folder_and_nothing_else(server, packed, tmp_path):
    target = tmp_path / "a" / "b"
    folder = get(archive_for(packed, server), target)
    assert folder == target / LAYOUT.folder
    assert os.listdir(target) == [LAYOUT.folder]
    assert read_cifar(LAYOUT, folder).num_classes == 10
    assert "readme.html" not in os.listdir(folder)
    assert server.asked == [None]


def test_what_is_there_is_not_downloaded_again(server, packed, tmp_path):
    archive = archive_for(packed, server)
    get(archive, tmp_path)
    get(archive, tmp_path)
    assert len(server.asked) == 1


def test_an_interrupted_download_is_resumed(server, packed, tmp_path):
    archive = archive_for(packed, server)
    server.breaks = [1000]
    message = fails(archive, tmp_path, "the connection was lost after 1,000 of", tries=1)
    assert "try again to resume" in message
    assert files(tmp_path) == ["small.tar.gz.part"]
    assert (tmp_path / "small.tar.gz.part").read_bytes() == packed[:1000]
    get(archive, tmp_path)
    assert server.asked == [None, "bytes=1000-"]
    assert os.listdir(tmp_path) == [LAYOUT.folder]


def test_a_broken_connection_is_taken_up_again_in_the_same_call(server, packed, tmp_path):
    server.breaks = [1000, 500]
    get(archive_for(packed, server), tmp_path)
    assert server.asked == [None, "bytes=1000-", "bytes=1500-"]


def test_a_server_without_ranges_starts_over(server, packed, tmp_path):
    server.ranges, server.breaks = False, [1000]
    get(archive_for(packed, server), tmp_path)
    assert server.asked == [None, "bytes=1000-"]
    assert os.listdir(tmp_path) == [LAYOUT.folder]


def test_a_complete_part_is_unpacked_without_a_request(server, packed, tmp_path):
    (tmp_path / "small.tar.gz.part").write_bytes(packed)
    get(archive_for(packed, server), tmp_path)
    assert server.asked == []


@pytest.mark.parametrize("extra", [b"x", b"x" * 5000])
def test_a_part_that_is_too_long_is_thrown_away(server, packed, tmp_path, extra):
    (tmp_path / "small.tar.gz.part").write_bytes(packed + extra)
    get(archive_for(packed, server), tmp_path)
    assert server.asked == [None]


def test_a_part_of_something_else_fails_once_and_then_heals(server, packed, tmp_path):
    archive = archive_for(packed, server)
    (tmp_path / "small.tar.gz.part").write_bytes(b"something else")
    fails(archive, tmp_path, "has the checksum .* discarded")
    assert files(tmp_path) == []
    get(archive, tmp_path)


def test_a_wrong_checksum_is_found_before_unpacking(server, packed, tmp_path):
    archive = replace(archive_for(packed, server), md5="0" * 32)
    fails(archive, tmp_path / "new", "has the checksum [0-9a-f]{32}, but CIFAR-10's published one is 0{32}")
    assert not (tmp_path / "new").exists()


def test_an_archive_of_another_size_is_refused_at_once(server, packed, tmp_path):
    archive = replace(archive_for(packed, server), size=len(packed) + 7)
    fails(archive, tmp_path, "offers .* bytes, but the archive of CIFAR-10 has")
    assert files(tmp_path) == []


def test_a_server_that_sends_less_than_it_announces(server, packed, tmp_path):
    archive = archive_for(packed, server)
    server.content, server.announced, server.ranges = packed[:2000], len(packed), False
    server.breaks = [5000] * 3
    fails(archive, tmp_path, "was lost after 2,000 of")
    assert files(tmp_path) == ["small.tar.gz.part"]


def test_a_wrong_range_is_not_glued_on(server, packed, tmp_path):
    (tmp_path / "small.tar.gz.part").write_bytes(packed[:1000])
    server.shift = 10
    fails(archive_for(packed, server), tmp_path, "a different range")
    assert (tmp_path / "small.tar.gz.part").read_bytes() == packed[:1000]


@pytest.mark.parametrize(("status", "requests"), [(404, 1), (403, 1), (503, 3)])
def test_a_server_that_refuses(server, packed, tmp_path, status, requests):
    server.status = status
    message = fails(archive_for(packed, server), tmp_path / "new", f"the server returned {status}")
    assert "yourself" in message
    assert len(server.asked) == requests
    assert not (tmp_path / "new").exists()


def closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_no_network_names_the_address_and_the_way_out(packed, tmp_path):
    url = f"http://127.0.0.1:{closed_port()}/small.tar.gz"
    message = fails(archive_for(packed, url=url), tmp_path / "a" / "b", "refused")
    assert url in message
    assert f"put that archive or its unpacked folder {LAYOUT.folder} into {tmp_path / 'a' / 'b'} yourself" in message
    assert os.listdir(tmp_path) == []


def test_an_archive_that_is_there_is_used_and_kept(packed, tmp_path):
    archive = archive_for(packed, url=f"http://127.0.0.1:{closed_port()}/small.tar.gz")
    (tmp_path / "small.tar.gz").write_bytes(packed)
    get(archive, tmp_path)
    assert sorted(os.listdir(tmp_path)) == [LAYOUT.folder, "small.tar.gz"]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda content: content[:-1], "is truncated: it has"),
        (lambda content: b"", "is truncated: it has 0 bytes"),
        (lambda content: content + b"x", "is too long"),
        (lambda content: content[:-1] + b"x", "has the checksum"),
    ],
)
def test_a_damaged_archive_that_is_there_is_named_and_left_alone(packed, tmp_path, change, match):
    (tmp_path / "small.tar.gz").write_bytes(change(packed))
    fails(archive_for(packed, url="http://127.0.0.1:1/small.tar.gz"), tmp_path, rf"small\.tar\.gz {match}.*; remove it")
    assert files(tmp_path) == ["small.tar.gz"]


def test_an_incomplete_folder_is_named_and_left_alone(server, packed, tmp_path):
    archive = archive_for(packed, server)
    folder = get(archive, tmp_path)
    (folder / "test_batch.bin").write_bytes(b"short")
    fails(archive, tmp_path, "test_batch.bin is truncated")
    assert (folder / "test_batch.bin").read_bytes() == b"short"


def member(name, content=b"x", **fields):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def tampered(packed, *extra, first=False, drop=()):
    """The good archive with further members."""
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        good = [(info, tar.extractfile(info).read()) for info in tar if info.isreg() and info.name not in drop]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for info, content in [*extra, *good] if first else [*good, *extra]:
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


INSIDE = f"{LAYOUT.folder}/data_batch_1.bin"
UNSAFE = {
    "parent": (member("../evil"), "points outside"),
    "deep parent": (member(f"{LAYOUT.folder}/../../evil"), "points outside"),
    "absolute": (member("/tmp/evil"), "points outside"),
    "backslash": (member("..\\evil"), "points outside"),
    "absolute in a pax header": (member("good", pax_headers={"path": "/tmp/evil"}), "points outside"),
    "parent in a pax header": (member("good", pax_headers={"path": f"{LAYOUT.folder}/../../evil"}), "points outside"),
    "absolute and long": (member("/" + "x" * 300), "points outside"),
    "block device": (member(INSIDE, b"", type=tarfile.BLKTYPE, devmajor=8, devminor=0), "is a link or device"),
    "hard link to another member": (
        member(f"{LAYOUT.folder}/test_batch.bin", b"", type=tarfile.LNKTYPE, linkname=INSIDE),
        "is a link",
    ),
    "a type that nobody knows": (member(INSIDE, b"", type=b"Z"), "is a link or device|bytes and should have"),
    "symlink": (member(f"{LAYOUT.folder}/link", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"), "is a link"),
    "symlinked folder": (member(LAYOUT.folder, b"", type=tarfile.SYMTYPE, linkname="/tmp"), "is a link"),
    "hard link": (member(INSIDE, b"", type=tarfile.LNKTYPE, linkname="/etc/passwd"), "is a link"),
    "device": (member(INSIDE, b"", type=tarfile.CHRTYPE, devmajor=1, devminor=5), "is a link or device"),
    "pipe": (member(INSIDE, b"", type=tarfile.FIFOTYPE), "is a link or device"),
    "wrong size": (member(INSIDE, b"short"), "data_batch_1.bin has 5 bytes and should have"),
    "long text": (member(f"{LAYOUT.folder}/batches.meta.txt", b"x" * 70_000), "should have at most 65,536"),
    "bomb": (member("bomb", b"\0" * (4 << 20)), "unpacks to more than"),
    "bomb inside": (member(f"{LAYOUT.folder}/bomb", b"\0" * (4 << 20)), "unpacks to more than"),
    "bomb of a header": (member("x" * (4 << 20)), "unpacks to more than"),
    "bomb of attributes": (member("x", pax_headers={"comment": "x" * (4 << 20)}), "unpacks to more than"),
}


# A second member of a name is passed over, so a wrong size counts only in the first.
CASES = [
    (case, first) for case, (_, message) in UNSAFE.items() for first in (True, False)[: 1 + ("have" not in message)]
]


@pytest.mark.parametrize(("case", "first"), CASES)
def test_unsafe_archives_are_refused_whole(server, packed, tmp_path, case, first):
    info, message = UNSAFE[case]
    content = tampered(packed, info, first=first)
    directory = tmp_path / "data"
    fails(archive_for(content, server), directory, f"cannot be unpacked: .*{message}")
    assert not directory.exists()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "info",
    [member("/" + "x" * 500_000), member("../" + "x" * 500_000), member("x" * 500_000, b"", type=tarfile.SYMTYPE)],
)
def test_a_long_name_makes_no_long_message(server, packed, tmp_path, info):
    with pytest.raises(DownloadError, match="cannot be unpacked") as caught:
        fetch("cifar10", tmp_path / "data", archive=archive_for(tampered(packed, info), server), quiet=True)
    assert len(str(caught.value)) < 1000


def test_many_members_are_refused(server, packed, tmp_path):
    content = tampered(packed, *[member(f"{number}") for number in range(200)])
    fails(archive_for(content, server), tmp_path, "more than 100 members")


def test_a_missing_member_is_named(server, packed, tmp_path):
    content = tampered(packed, drop={f"{LAYOUT.folder}/{name}" for name in ("test_batch.bin", "batches.meta.txt")})
    fails(archive_for(content, server), tmp_path, "it lacks batches.meta.txt, test_batch.bin")
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    "content",
    [b"no archive at all", gzip.compress(b"no tar archive" * 100), gzip.compress(b""), b""],
    ids=["text", "gzip", "empty gzip", "empty"],
)
def test_what_is_no_archive_is_named(packed, tmp_path, content):
    (tmp_path / "small.tar.gz").write_bytes(content)
    fails(archive_for(content, url="http://127.0.0.1:1/small.tar.gz"), tmp_path, "cannot be unpacked: it ")
    assert files(tmp_path) == ["small.tar.gz"]


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_truncated_archive_with_its_own_checksum_is_named(packed, tmp_path, share):
    content = packed[: int(share * len(packed))]
    (tmp_path / "small.tar.gz").write_bytes(content)
    fails(archive_for(content, url="http://127.0.0.1:1/small.tar.gz"), tmp_path, "it is not a complete .tar.gz archive")
    assert files(tmp_path) == ["small.tar.gz"]


def test_two_downloads_do_not_mix(server, packed, tmp_path):
    fcntl = pytest.importorskip("fcntl")
    with open(tmp_path / "small.tar.gz.part", "wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        fails(archive_for(packed, server), tmp_path, "is being downloaded by another process")
    get(archive_for(packed, server), tmp_path)


def test_a_folder_unpacked_by_another_process_meanwhile_is_used(server, packed, tmp_path, monkeypatch):
    open_part = download.part_file

    def late(path):
        make_folder(tmp_path, LAYOUT)
        return open_part(path)

    monkeypatch.setattr(download, "part_file", late)
    assert get(archive_for(packed, server), tmp_path) == tmp_path / LAYOUT.folder
    assert server.asked == []
    assert os.listdir(tmp_path) == [LAYOUT.folder]


def test_a_full_disk_is_told_while_downloading(server, packed, tmp_path):
    resource = pytest.importorskip("resource")
    archive, limits = archive_for(packed, server), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        fails(archive, tmp_path, r"small\.tar\.gz\.part cannot be written")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "small.tar.gz.part").read_bytes() == packed[:20_000]
    get(archive, tmp_path)


def test_a_full_disk_is_told_while_unpacking(server, packed, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("particleaugment.data.archive.shutil.copyfileobj", full)
    fails(archive_for(packed, server), tmp_path, "cannot be unpacked to .*No space left on device")
    assert files(tmp_path) == ["small.tar.gz.part"]
    monkeypatch.undo()
    get(archive_for(packed, server), tmp_path)
    assert len(server.asked) == 1


def command(*arguments, **environment):
    process = Forked("-m", "particleaugment", "data", *arguments, environment=environment)
    output, errors = process.communicate()
    return subprocess.CompletedProcess(arguments, process.returncode, output, errors)


def test_the_command_names_the_data_sets(tmp_path):
    result = command("cifar11", str(tmp_path))
    assert result.returncode == 2
    assert "did you mean cifar10?" in result.stderr


def test_the_command_without_a_network_ends_in_one_sentence(tmp_path):
    result = command("cifar10", str(tmp_path / "new"), https_proxy=f"http://127.0.0.1:{closed_port()}")
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz cannot be downloaded" in result.stderr
    assert not (tmp_path / "new").exists()
