"""Attacks by what is downloaded or handed over: archives, replies of servers, and lists of policies as Python text."""

from __future__ import annotations

import io
import os
import random
import socket
import stat
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

from attack_sandbox import Finding, Sandbox
from attack_texts import ESCAPES

from particleaugment.data.archive import ArchiveError, unpack
from particleaugment.data.cifar import CIFAR10
from particleaugment.data.download import Archive, DownloadError, fetch

WANTED = {"one.bin": 1000, "two.bin": 3000}
TEXT = "names.txt"
NAMES = (
    "../evil", "good/../../evil", "/tmp/evil", "..\\evil", "good", "good/", "good/one.bin", "good/two.bin", "./one.bin",
    "good//one.bin", "other/one.bin", "good/deep/one.bin", "good/names.txt", "good/\x1b[2J", "x" * 5000, ".", "..", "",
    "good/one.bin\0x", "~/x", "C:\\x", "good/../good/one.bin", "\udcff", "/" + "y" * 300_000, "good/" + "z" * 90_000,
    "//evil", "good/./one.bin", "good/one.bin/", "\u202egood",
)  # fmt: skip
TYPES = (tarfile.REGTYPE,) * 4 + (
    tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE,
    tarfile.GNUTYPE_SPARSE, tarfile.CONTTYPE, b"Z",
)  # fmt: skip


def _member(name: str, size: int) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = size
    return info, b"x" * size


def _hostile_member(box: Sandbox, draw: random.Random) -> tuple[tarfile.TarInfo, bytes]:
    size = draw.choice([0, 1, 1000, 1001, 3000, 70_000, 3 << 20])
    info, content = _member(draw.choice(NAMES), size)
    info.type = draw.choice(TYPES)
    info.mode = draw.choice([0o644, 0o4777, 0])
    info.linkname = draw.choice(
        ["", "/etc/passwd", str(box.outside / "secret"), "../../outside/secret", "good/one.bin"]
    )
    if not info.isreg():
        info.size, content = 0, b""
    if draw.random() < 0.2:
        name, value = draw.choice(["path", "linkpath", "size", "comment", "GNU.sparse.realsize"]), draw.choice(NAMES)
        info.pax_headers = {name: draw.choice([value, "9" * 30, "-1", "x" * (2 << 20)])}
    return info, content


def archives(box: Sandbox, draw: random.Random) -> str:
    """Archives with links, absolute names, devices and bombs: nothing but the wanted files is written, or nothing."""
    box.run.mkdir()
    members = [_member(f"good/{name}", size) for name, size in WANTED.items()] + [_member(f"good/{TEXT}", 9)]
    for _ in range(draw.choice([0, 1, 1, 1, 2, 150])):
        members.insert(draw.randrange(len(members) + 1), _hostile_member(box, draw))
    buffer = io.BytesIO()
    try:
        with tarfile.open(fileobj=buffer, mode="w:gz", format=draw.choice([0, 1, 2]), errors="surrogateescape") as tar:
            for info, content in members:
                tar.addfile(info, io.BytesIO(content))
    except (ValueError, UnicodeError, OSError):  # there is no such archive
        return "passed over"
    made = bytearray(buffer.getvalue())
    if draw.random() < 0.3:
        for _ in range(draw.randint(1, 4)):
            made[draw.randrange(len(made))] ^= 1 << draw.randrange(8)
    (box.root / "archive.tar.gz").write_bytes(made[: draw.choice([len(made)] * 5 + [draw.randrange(len(made))])])
    found = box.call(unpack, box.root / "archive.tar.gz", box.run, "good", WANTED, (TEXT,), errors=(ArchiveError,))
    for path in box.run.rglob("*"):
        if path.parent != box.run or path.name not in {*WANTED, TEXT} or not stat.S_ISREG(path.lstat().st_mode):
            raise Finding(f"an archive has written {str(path.relative_to(box.run))!r}")
    if isinstance(found, ArchiveError):
        return "refused"
    sizes = {path.name: path.stat().st_size for path in box.run.iterdir()}
    if not sizes.items() >= WANTED.items() or TEXT not in sizes:
        raise Finding(f"an archive was accepted that gives {sizes}")
    return "accepted"


# Servers.

PLACES = ("http://127.0.0.1:1/x", "http://[", "http://x:y", "/", "x:")
LATIN_TWO = "\udcb2"  # a digit to those who do not look closely


def _reply(box: Sandbox, draw: random.Random) -> bytes:
    reason = "".join(draw.choice([*ESCAPES, "Gone", " ", "x" * 3000, ";"]) for _ in range(draw.randint(0, 4)))
    status = draw.choice(["200", "206", "301", "302", "404", "416", "500", "503", "99", "-1", "x", "9" * 400])
    headers = [
        f"Content-Length: {draw.choice(['0', '5', '-1', 'x', '9' * 30, '9' * 5000, '10', LATIN_TWO])}",
        f"Content-Range: {draw.choice(['bytes 0-9/10', 'bytes 5-1/x', 'x', 'bytes 3-9/10', 'bytes */10'])}",
        f"Location: {draw.choice([f'file://{box.outside}/secret', *PLACES, reason])}",
        "Transfer-Encoding: chunked",
        "X: " + "y" * draw.choice([10, 70_000]),
        *["Z: z"] * draw.choice([0, 0, 200]),
    ]
    chosen = draw.sample(headers, draw.randint(0, len(headers)))
    version = draw.choice(["HTTP/1.1", "HTTP/1.0", "HTTP/9", "ICY", ""])
    head = "\r\n".join([f"{version} {status} {reason}", *chosen, "", ""]).encode("utf-8", "surrogateescape")
    return head + draw.choice([b"", b"hello", b"0123456789", b"\x00" * 100_000, b"zz\r\n", b"5\r\nhello\r\n0\r\n\r\n"])


def replies(box: Sandbox, draw: random.Random) -> str:
    """Servers that answer anything: one printable sentence, and nothing is left but the beginning of a download."""
    box.run.mkdir()
    answers = [_reply(box, draw) for _ in range(2)]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(20)

        def serve() -> None:
            for answer in answers:
                try:
                    with listening.accept()[0] as connection:
                        connection.recv(1 << 16)
                        connection.sendall(answer)
                except OSError:  # nobody asks any more, or nobody listens to the end
                    continue

        threading.Thread(target=serve, daemon=True).start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/archive.tar.gz"
        archive = Archive(layout=CIFAR10, url=address, md5="0" * 32, size=10)

        def download() -> Path:
            return fetch("cifar10", box.run, archive=archive, quiet=True, tries=1, pause=0.0)

        found = box.call(download, errors=(DownloadError,))
    if not isinstance(found, DownloadError):
        raise Finding("a download was accepted whose checksum is wrong")
    left = [path.name for path in box.run.rglob("*") if not path.name.endswith(".part") or not path.is_file()]
    if left or any(path.stat().st_size > 10 for path in box.run.iterdir()):
        raise Finding(f"a download that failed has left {left or [path.name for path in box.run.iterdir()]}")
    return "refused"


# Lists of policies.

PARTS: tuple[Callable[[random.Random, int], str], ...] = (
    lambda draw, count: "".join(f"v{number} = [[('Rotate', 0.7, 0.9)]]\n" for number in range(count)),
    lambda draw, count: "x = [" + "[('Rotate', 0.7, 0.9)]," * count + "]\n",
    lambda draw, count: "x = " + "[" * count + "]" * draw.choice([0, count]) + "\n",
    lambda draw, count: "x = " + "+".join(["[]"] * count) + "\n",
    lambda draw, count: "x = " + "-" * count + "1\n",
    lambda draw, count: "x = 9" + "9" * count + "\n",
    lambda draw, count: "def f():\n" + "    y = 1\n" * min(count, 9) + "    return [[('Rotate', 0.5, 0.5)]]\n" * count,
    lambda draw, count: "x = [[('Rotate', 0.7, 0.9)]]\n" * count,
    lambda draw, count: f"x = [[({draw.choice(ESCAPES) + 'Rotate'!r}, {draw.choice(['1e999', '-1', '0.5'])}, 0.1)]]\n",
    lambda draw, count: "x = '" + "y" * count + "'\n",
    lambda draw, count: "if 1:\n x = 1\n" * count,
    lambda draw, count: "x = f\"{__import__('os').mkdir('canary')}\"\n",
    lambda draw, count: f"\x00{draw.choice(ESCAPES)}\n",
    lambda draw, count: f"{'n' * min(count, 5000)} = [[('Rotate', 0.7, 0.9), ('Invert', 0.1, 0.2)]]\n",
)


def policy_lists(box: Sandbox, draw: random.Random) -> str:
    """Python text with any number of definitions: read or refused in a sentence, soon, and never run."""
    box.run.mkdir()
    os.chdir(box.run)
    count = draw.choice([0, 1, 2, 30, 900, 1100, 11_000, 30_000, 200_000])
    text = "".join(draw.choice(PARTS)(draw, count) for _ in range(draw.choice([1, 1, 2])))
    Path("list.py").write_bytes(text.encode("utf-8", "surrogateescape")[: 4 << 20])
    name = draw.choice([(), (), ("--name", "x"), ("--name", "v7"), ("--name", "v29999"), ("--name", "f")])
    source = draw.choice(["dada", "autoaugment", "fast-autoaugment"])
    found = box.command("policy", "import", "list.py", "--from", source, *name)
    if Path("canary").exists():
        raise Finding("the text of a list was run")
    return "refused" if found.code else "accepted"
