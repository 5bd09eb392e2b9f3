"""What is read is a regular file of bearable size: pipes do not block, devices do not go on for ever."""

import ast
import os
import re
import socket
from pathlib import Path

import pytest

from particleaugment.util import reading
from particleaugment.util.reading import open_file, read_file


def test_a_regular_file_and_a_link_to_one(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert read_file(tmp_path / "file") == read_file(str(tmp_path / "link")) == b"content"
    assert read_file(tmp_path / "file", limit=7) == b"content"
    (tmp_path / "empty").touch()
    assert read_file(tmp_path / "empty", limit=0) == b""


@pytest.mark.parametrize("through_a_link", [False, True])
def test_files_that_would_block_or_never_end(tmp_path, through_a_link):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), Path("/dev/tty")):
        if through_a_link:
            (tmp_path / path.name).with_suffix(".link").symlink_to(path)
            path = (tmp_path / path.name).with_suffix(".link")
        with pytest.raises(OSError, match=r"it is a pipe or a device, not a file|No such device"):
            read_file(path)


def test_sockets_and_folders(tmp_path):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        with pytest.raises(OSError, match="No such device or address"):
            open_file(tmp_path / "socket")
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path)


def test_large_files_are_not_read(tmp_path):
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="it is larger than 64 MiB"):
        read_file(tmp_path / "sparse")
    (tmp_path / "file").write_bytes(b"12345678")
    with pytest.raises(OSError, match="it is larger than 7 bytes"):
        read_file(tmp_path / "file", limit=7)


@pytest.mark.parametrize(("limit", "whole"), [(1_000_000, True), (299_999, False)])
def test_a_file_that_grows_while_it_is_read(tmp_path, monkeypatch, limit, whole):
    """The size that the system tells is out of date."""
    (tmp_path / "file").write_bytes(b"x" * 300_000)

    class Small:
        st_size = 100_000

    with monkeypatch.context() as patch:
        patch.setattr(reading, "_opener", os.open)
        patch.setattr(reading.os, "fstat", lambda descriptor: Small)
        if whole:
            assert len(read_file(tmp_path / "file", limit)) == 300_000
        else:
            with pytest.raises(OSError, match="it is larger than 299,999 bytes"):
                read_file(tmp_path / "file", limit)


def reading_calls(tree):
    """The calls in a module that read from a path, but for those of our own functions."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name.rpartition(".")[2] in ("read_text", "read_bytes", "fromfile", "safe_open", "load_file"):
            yield name
        bare = not any(option.arg == "opener" for option in node.keywords)
        if name in ("np.load", "gzip.open") or (bare and name in ("open", "FileIO", "io.FileIO")):
            yield name


OURS = {
    ("util/timing.py", "cpuinfo.read_text"),  # the system's
    ("executors/fused.py", "folder.joinpath(part).read_text"),
}


def test_nothing_is_read_in_another_way():
    sources = Path(reading.__file__).parents[1]
    found = {
        (str(file.relative_to(sources)), re.sub(r"\s", "", call))
        for file in sources.rglob("*.py")
        for call in reading_calls(ast.parse(file.read_text()))
    }
    assert found == OURS
