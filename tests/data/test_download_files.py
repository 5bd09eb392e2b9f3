"""Downloads of data sets that are published as several files."""

import hashlib
import os
import re
import threading
from dataclasses import replace

import pytest
import torch
from test_download import Handler, Server, closed_port, command, files
from test_idx import make_idx

from particleaugment.data import download, load_data, load_fashion_mnist, load_mnist
from particleaugment.data.download import FILE_SETS, DownloadError, FileSet, PublishedFile, fetch
from particleaugment.data.idx import FASHION_MNIST, FILES, MNIST

NAMES = [f"{name}.gz" for name in FILES]


class FilesHandler(Handler):
    """Serves several files by name, each of which may be cut off once."""

    def do_GET(self):
        server, name = self.server, self.path.removeprefix("/home/")
        server.requests.append((name, self.headers.get("Range")))
        server.content, server.breaks = server.files[name], [server.cuts.pop(name)] if name in server.cuts else []
        super().do_GET()


@pytest.fixture
def server():
    server = Server()
    server.RequestHandlerClass = FilesHandler
    server.files, server.cuts, server.requests = {}, {}, []
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def packed(tmp_path_factory):
    folder = make_idx(tmp_path_factory.mktemp("source"), ".gz")
    return {name: (folder / name).read_bytes() for name in NAMES}


def published(contents, server=None, layout=MNIST, port=None):
    """A data set of these files; with a server, they are what it serves."""
    if server is not None:
        server.files, port = dict(contents), server.server_address[1]
    return FileSet(
        layout=layout,
        files=tuple(
            PublishedFile(
                layout=layout,
                url=f"http://127.0.0.1:{port}/home/{name}",
                md5=hashlib.md5(content).hexdigest(),
                size=len(content),
            )
            for name, content in contents.items()
        ),
    )


def get(archive, directory, **options):
    return fetch(archive.layout.name, directory, archive=archive, pause=0.0, **options)


def fails(archive, directory, match, **options):
    with pytest.raises(DownloadError, match=match) as error:
        get(archive, directory, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def parts(*names):
    return sorted(f"mnist.part/{name}" for name in names)


def test_published_numbers():
    homes = {
        "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "fashion-mnist": "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    }
    assert set(FILE_SETS) == set(homes)
    for name, found in FILE_SETS.items():
        assert found.layout.name == name
        assert [file.url for file in found.files] == [homes[name] + file for file in NAMES]
        assert all(file.layout is found.layout and re.fullmatch("[0-9a-f]{32}", file.md5) for file in found.files)
    assert len({file.md5 for found in FILE_SETS.values() for file in found.files}) == 8


@pytest.mark.parametrize("layout", [MNIST, FASHION_MNIST], ids=lambda layout: layout.name)
def test_a_download_ends_in_a_readable_folder_and_nothing_else(server, packed, tmp_path, layout):
    target = tmp_path / "a" / "b"
    folder = get(published(packed, server, layout), target)
    assert folder == target / layout.name
    assert os.listdir(target) == [layout.name]
    assert {name: (folder / name).read_bytes() for name in os.listdir(folder)} == packed
    assert torch.equal(load_data(layout.name, target).train_images, load_data(layout.name, folder).train_images)
    assert server.requests == [(name, None) for name in NAMES]


def test_what_is_there_is_not_downloaded_again(server, packed, tmp_path):
    archive = published(packed, server)
    assert get(archive, tmp_path) == get(archive, tmp_path)
    assert len(server.requests) == 4


def test_torchvisions_folder_counts(server, packed, tmp_path):
    folder = make_idx(tmp_path / "MNIST" / "raw")
    assert get(published(packed, server), tmp_path) == folder
    assert server.requests == []


def test_an_interrupted_download_is_resumed(server, packed, tmp_path):
    archive = published(packed, server)
    server.cuts = {NAMES[2]: 1000}
    message = fails(archive, tmp_path, f"{NAMES[2]} cannot be downloaded: the connection was lost", tries=1)
    assert f"put the files of MNIST into {tmp_path / 'mnist'} yourself" in message
    assert files(tmp_path) == parts(*NAMES[:3])
    assert (tmp_path / "mnist.part" / NAMES[2]).read_bytes() == packed[NAMES[2]][:1000]
    server.requests.clear()
    get(archive, tmp_path)
    assert server.requests == [(NAMES[2], "bytes=1000-"), (NAMES[3], None)]
    assert os.listdir(tmp_path) == ["mnist"]
    load_mnist(tmp_path)


def test_a_broken_connection_is_taken_up_again_in_the_same_call(server, packed, tmp_path):
    archive = published(packed, server)
    server.cuts = {NAMES[0]: 700, NAMES[2]: 1000}
    get(archive, tmp_path)
    assert len(server.requests) == 6
    load_mnist(tmp_path)


def test_downloads_of_two_sets_do_not_mix(server, packed, tmp_path, tmp_path_factory):
    """Their files have the same names."""
    folder = make_idx(tmp_path_factory.mktemp("other"), ".gz", seed=1)
    clothes = {name: (folder / name).read_bytes() for name in NAMES}
    server.cuts = {NAMES[0]: 1000}
    fails(published(packed, server), tmp_path, "was lost", tries=1)
    get(published(clothes, server, FASHION_MNIST), tmp_path)
    get(published(packed, server), tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["fashion-mnist", "mnist"]
    assert not torch.equal(load_mnist(tmp_path).train_images, load_fashion_mnist(tmp_path).train_images)


def test_a_wrong_checksum_leaves_no_folder_and_keeps_the_sound_files(server, packed, tmp_path):
    archive = published(packed, server)
    right = server.files[NAMES[1]]
    server.files[NAMES[1]] = right[:-1] + bytes([right[-1] ^ 1])
    fails(archive, tmp_path, f"{NAMES[1]} has the checksum .*, but MNIST's published one is .*; it was discarded")
    assert files(tmp_path) == parts(NAMES[0])
    server.files[NAMES[1]] = right
    server.requests.clear()
    get(archive, tmp_path)
    assert [name for name, _ in server.requests] == NAMES[1:]


def test_a_file_that_was_damaged_since_it_arrived_is_found(server, packed, tmp_path):
    archive = published(packed, server)
    server.cuts = {NAMES[3]: 10}
    fails(archive, tmp_path, "was lost", tries=1)
    (tmp_path / "mnist.part" / NAMES[0]).write_bytes(bytes(len(packed[NAMES[0]])))
    fails(archive, tmp_path, f"{NAMES[0]} has the checksum")
    assert not (tmp_path / "mnist").exists()
    get(archive, tmp_path)
    load_mnist(tmp_path)


def test_a_file_of_another_size_is_refused_at_once(server, packed, tmp_path):
    archive = published(packed, server)
    first = replace(archive.files[0], size=archive.files[0].size + 7)
    message = f"offers .* bytes, but the published {NAMES[0]} of MNIST has {first.size:,}"
    fails(replace(archive, files=(first, *archive.files[1:])), tmp_path / "new", message)
    assert not (tmp_path / "new").exists()


def test_an_incomplete_folder_is_named_and_left_alone(server, packed, tmp_path):
    archive = published(packed, server)
    folder = get(archive, tmp_path)
    (folder / NAMES[3]).unlink()
    fails(archive, tmp_path, f"mnist has neither {FILES[3]} nor .*, or remove {folder} and try again")
    (folder / NAMES[3]).write_bytes(packed[NAMES[3]][:-1])
    fails(archive, tmp_path, rf"{NAMES[3]} is not a complete gzip file .*, or remove {folder} and try again")
    assert len(server.requests) == 4


def test_something_else_of_the_folders_name_is_left_alone(server, packed, tmp_path):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "notes.txt").write_text("mine")
    fails(published(packed, server), tmp_path, "mnist exists, but does not contain the files of MNIST; move it")
    assert files(tmp_path) == ["mnist/notes.txt"]
    assert server.requests == []
    (tmp_path / "mnist" / "notes.txt").unlink()
    get(published(packed, server), tmp_path)
    load_mnist(tmp_path)


@pytest.mark.parametrize(("status", "requests"), [(404, 1), (503, 3)])
def test_a_server_that_refuses(server, packed, tmp_path, status, requests):
    server.status = status
    fails(published(packed, server), tmp_path / "new", f"the server returned {status}")
    assert len(server.requests) == requests
    assert not (tmp_path / "new").exists()


def test_no_network_names_the_address_and_the_way_out(packed, tmp_path):
    archive, target = published(packed, port=closed_port()), tmp_path / "a" / "b"
    message = fails(archive, target, "refused")
    assert archive.files[0].url in message
    assert message.endswith(f"try again, or put the files of MNIST into {target / 'mnist'} yourself")
    assert os.listdir(tmp_path) == []


def test_two_downloads_do_not_mix(server, packed, tmp_path):
    fcntl = pytest.importorskip("fcntl")
    (tmp_path / "mnist.part").mkdir()
    with open(tmp_path / "mnist.part" / NAMES[0], "wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        fails(published(packed, server), tmp_path, "is being downloaded by another process")
    assert server.requests == []
    get(published(packed, server), tmp_path)


def test_a_folder_completed_by_another_process_meanwhile_is_used(server, packed, tmp_path, monkeypatch):
    open_part = download.part_file

    def late(path):
        if not (tmp_path / "mnist").exists():
            make_idx(tmp_path / "mnist", ".gz")
        return open_part(path)

    monkeypatch.setattr(download, "part_file", late)
    assert get(published(packed, server), tmp_path) == tmp_path / "mnist"
    assert server.requests == []
    assert os.listdir(tmp_path) == ["mnist"]


def test_a_full_disk_is_told_while_downloading(server, packed, tmp_path):
    resource = pytest.importorskip("resource")
    archive, limits = published(packed, server), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        fails(archive, tmp_path, rf"mnist\.part/{NAMES[0]} cannot be written")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "mnist.part" / NAMES[0]).read_bytes() == packed[NAMES[0]][:20_000]
    get(archive, tmp_path)


def test_the_command_names_the_data_sets(tmp_path):
    result = command("minst", str(tmp_path))
    assert result.returncode == 2
    assert "did you mean mnist?" in result.stderr


@pytest.mark.parametrize("name", FILE_SETS)
def test_the_command_without_a_network_ends_in_one_sentence(tmp_path, name):
    proxy = f"http://127.0.0.1:{closed_port()}"
    result = command(name, str(tmp_path / "new"), https_proxy=proxy, http_proxy=proxy)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert f"{FILE_SETS[name].files[0].url} cannot be downloaded" in result.stderr
    assert not (tmp_path / "new").exists()


def test_the_command_finds_what_is_there(tmp_path):
    folder = make_idx(tmp_path / "FashionMNIST" / "raw", ".gz")
    result = command("fashion-mnist", str(tmp_path))
    assert (result.returncode, result.stdout) == (0, f"fashion-mnist is in {folder}\n")
