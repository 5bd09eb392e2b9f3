"""Files are written whole or not at all, and nothing that somebody put in their place is followed."""

import ast
import contextlib
import os
import re
import stat
import threading
from pathlib import Path

import pytest

import particleaugment as pa
from particleaugment.compare.run_record import RunRecord
from particleaugment.compare.runner import LocalPlace
from particleaugment.data.transfer import DownloadError, part_file
from particleaugment.recipes import get_recipe
from particleaugment.report.gallery import write_gallery
from particleaugment.report.tensorboard import EventWriter
from particleaugment.training.run import RunError, RunFolder
from particleaugment.util import atomic
from particleaugment.util.atomic import (
    SaveError,
    new_folder,
    own_folder,
    regular_file,
    remove_leftovers,
    replacing,
    take_lock,
    write_atomically,
)


def names(folder):
    return sorted(file.name for file in folder.iterdir())


@pytest.fixture
def secret(tmp_path_factory):
    """A file elsewhere that no link may lead a writer to."""
    file = tmp_path_factory.mktemp("elsewhere") / "secret"
    file.write_bytes(b"secret")
    yield file
    assert file.read_bytes() == b"secret"


@pytest.fixture
def in_the_way(tmp_path, secret):
    """Puts something else than a regular file at a place."""

    def put(place, kind):
        if kind == "link":
            place.symlink_to(secret)
        elif kind == "dangling link":
            place.symlink_to(secret.with_name("missing"))
        elif kind == "pipe":
            os.mkfifo(place)
        else:
            place.mkdir()

    yield put
    assert not secret.with_name("missing").exists()


KINDS = ["link", "dangling link", "pipe", "folder"]


# New files.


def test_bytes_and_text(tmp_path):
    write_atomically(tmp_path / "file", b"\x00\xff")
    assert (tmp_path / "file").read_bytes() == b"\x00\xff"
    write_atomically(tmp_path / "file", "Grüße\n")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "Grüße\n"
    assert names(tmp_path) == ["file"]


def test_a_stream_appears_when_it_is_whole(tmp_path):
    place = tmp_path / "file"
    place.write_bytes(b"old")
    with replacing(place) as file:
        file.write(b"ne")
        file.flush()
        assert place.read_bytes() == b"old"
        file.write(b"w")
    assert place.read_bytes() == b"new"


def test_permissions_are_those_of_any_new_file(tmp_path):
    write_atomically(tmp_path / "ours", b"")
    (tmp_path / "plain").write_bytes(b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_crash_leaves_the_old_file(tmp_path, monkeypatch, step):
    file = tmp_path / "policy.json"
    write_atomically(file, b"old")

    def crash(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, step, crash)
        with pytest.raises(KeyboardInterrupt):
            write_atomically(file, b"new")
    assert file.read_bytes() == b"old"
    assert names(tmp_path) == ["policy.json"]
    write_atomically(file, b"new")
    assert file.read_bytes() == b"new"


def test_an_error_of_the_writer_leaves_the_old_file(tmp_path):
    write_atomically(tmp_path / "file", b"old")
    with pytest.raises(TypeError), replacing(tmp_path / "file") as file:
        file.writelines([b"new", 1])
    assert (tmp_path / "file").read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_regular_file_is_not_replaced(tmp_path, in_the_way, kind):
    place = tmp_path / "file"
    in_the_way(place, kind)
    before = place.lstat().st_mode
    reason = "Is a directory" if kind == "folder" else "it is a link, a pipe or a device"
    with pytest.raises(SaveError, match=f"file cannot be written: {reason}"):
        write_atomically(place, b"new")
    assert place.lstat().st_mode == before
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe"])
def test_a_temporary_name_that_is_taken_is_not_used(tmp_path, in_the_way, monkeypatch, kind):
    monkeypatch.setattr(atomic.secrets, "token_hex", lambda count: "guessed")
    in_the_way(tmp_path / ".file.guessed.tmp", kind)
    with pytest.raises(SaveError, match="cannot be written: File exists"):
        write_atomically(tmp_path / "file", b"new")
    assert not (tmp_path / "file").exists()


def test_temporary_names_cannot_be_guessed(tmp_path):
    seen = set()
    for _ in range(20):
        with replacing(tmp_path / "file"):
            (name,) = (set(names(tmp_path)) - {"file"}) or {None}
            seen.add(name)
    assert len(seen) == 20


def test_the_longest_name(tmp_path):
    write_atomically(tmp_path / ("é" * 127), b"")
    assert names(tmp_path) == ["é" * 127]


# New folders.


def test_a_folder_appears_when_it_is_whole(tmp_path):
    with new_folder(tmp_path / "run") as folder:
        (folder / "config.json").write_text("{}")
        assert not (tmp_path / "run").exists()
    assert names(tmp_path / "run") == ["config.json"]
    assert names(tmp_path) == ["run"]


def test_a_folder_that_fails_leaves_nothing(tmp_path):

    def interrupted():
        with new_folder(tmp_path / "run") as folder:
            (folder / "config.json").write_text("{}")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert names(tmp_path) == []


def test_a_folder_replaces_neither_files_nor_links(tmp_path, secret):
    (tmp_path / "link").symlink_to(secret.parent)
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    for place in ("link", "file", "full"):
        with pytest.raises(OSError), new_folder(tmp_path / place):  # noqa: PT011
            pass
    assert names(secret.parent) == ["secret"]
    assert names(tmp_path) == ["file", "full", "link"]


def test_a_folder_of_our_own_is_no_link(tmp_path, secret):
    assert own_folder(tmp_path / "new" / "folder").is_dir()
    assert own_folder(tmp_path / "new" / "folder").is_dir()
    (tmp_path / "link").symlink_to(secret.parent)
    with pytest.raises(OSError, match="it is a link, not a folder"):
        own_folder(tmp_path / "link")
    with pytest.raises(FileExistsError):
        own_folder(secret)


# Files that grow.


@pytest.mark.parametrize("mode", ["ab", "a+b", "rb", "r+b"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_but_a_regular_file_is_opened(tmp_path, in_the_way, kind, mode):
    in_the_way(tmp_path / "file", kind)
    refused = pytest.raises(OSError, match=r"Is a directory|it is a link, a pipe or a device")
    with refused, open(tmp_path / "file", mode, opener=regular_file):
        pass


def test_a_pipe_with_a_reader_is_refused_too(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    refused = pytest.raises(OSError, match="it is a link, a pipe or a device")
    with refused, open(tmp_path / "pipe", "ab", opener=regular_file):
        pass
    os.close(reader)


@pytest.mark.parametrize("mode", ["ab", "r+b", "wb"])
def test_a_file_with_a_second_name_is_not_changed(tmp_path, secret, mode):
    os.link(secret, tmp_path / "file")
    refused = pytest.raises(OSError, match="it is the same file as another one")
    with refused, open(tmp_path / "file", mode, opener=regular_file):
        pass
    with open(tmp_path / "file", "rb", opener=regular_file) as file:
        assert file.read() == b"secret", "it may be read"
    write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new", "and replaced"


def test_a_file_is_cut_where_that_is_asked_for(tmp_path):
    (tmp_path / "file").write_bytes(b"old and long")
    with open(tmp_path / "file", "wb", opener=regular_file) as file:
        file.write(b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


def test_regular_files_are_made_and_appended_to(tmp_path):
    for line in (b"one\n", b"two\n"):
        with open(tmp_path / "file", "ab", opener=regular_file) as file:
            file.write(line)
    assert (tmp_path / "file").read_bytes() == b"one\ntwo\n"


def test_one_process_or_thread_has_the_lock(tmp_path):
    with open(tmp_path / "file", "a+b", opener=regular_file) as first:
        assert take_lock(first)
        answers = []

        def second():
            with open(tmp_path / "file", "a+b", opener=regular_file) as other:
                answers.append(take_lock(other))

        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
        second()
        assert answers == [False, False]
    second()
    assert answers[-1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_does_not_keep_the_lock(tmp_path):
    """Workers of a data loader live on for seconds after their parent was killed."""
    path = tmp_path / "file"
    (until, go), (ready, say) = os.pipe(), os.pipe()
    with open(path, "a+b", opener=regular_file) as file:
        assert take_lock(file)
        file.write(b"once")
        child = os.fork()
        if child == 0:
            os.close(go)
            os.write(say, b"1")
            os.read(until, 1)
            with contextlib.suppress(OSError):
                file.flush()
            os._exit(0)
        os.read(ready, 1)
        with open(path, "a+b", opener=regular_file) as other:
            assert not take_lock(other), "its parent has it"
    try:
        with open(path, "a+b", opener=regular_file) as other:
            assert take_lock(other)
    finally:
        os.close(go)
        os.waitpid(child, 0)
        for end in (until, ready, say):
            os.close(end)
    assert path.read_bytes() == b"once"


def test_leftovers_are_removed_and_nothing_else(tmp_path, secret):
    left = ".checkpoint-00000001.pt.0123456789abcdef.tmp"
    (tmp_path / left).write_bytes(b"half a check")
    kept = [".hidden", ".notes.tmp", "file.tmp", "model.safetensors"]
    for name in kept:
        (tmp_path / name).write_bytes(b"")
    (tmp_path / ".link.0123456789abcdef.tmp").symlink_to(secret)
    (tmp_path / ".folder.0123456789abcdef.tmp").mkdir()
    remove_leftovers(tmp_path)
    assert names(tmp_path) == sorted([*kept, ".link.0123456789abcdef.tmp", ".folder.0123456789abcdef.tmp"])


# What is written through here.


@pytest.fixture
def run(tmp_path):
    return RunFolder.create(tmp_path / "run", get_recipe("digits").config)


@pytest.mark.parametrize("kind", KINDS)
def test_the_metrics_of_a_run(run, in_the_way, kind):
    in_the_way(run.metrics, kind)
    with pytest.raises(SaveError, match=r"metrics.jsonl cannot be written: (Is a|it is a link)"):
        run.append_metrics({"kind": "epoch"})


def test_metrics_behind_a_link_are_not_cut(run, secret):
    run.metrics.symlink_to(secret)
    with pytest.raises(SaveError, match="it is a link"):
        run.truncate_metrics(0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_lock_of_a_run(run, in_the_way, kind):
    in_the_way(run.path / ".lock", kind)
    with pytest.raises(RunError, match=r"cannot be written: (Is a|it is a link)"), run.locked():
        pass
    assert run.owner() is None, "and a pipe does not block who asks"


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl"])
def test_a_second_name_of_a_file_elsewhere(run, secret, name):
    os.link(secret, run.path / name)
    with pytest.raises((RunError, SaveError), match="it is the same file as another one"), run.locked():
        run.append_metrics({"kind": "epoch"})


def test_the_events_of_a_run(run, secret):
    pytest.importorskip("tensorboard")
    (run.path / "tensorboard").symlink_to(secret.parent)
    with pytest.raises(SaveError, match="tensorboard cannot be written: it is a link"):
        EventWriter(run.path).log({"kind": "epoch", "epoch": 1, "seconds": {}})
    assert names(secret.parent) == ["secret"]


def test_the_logs_of_a_comparison(run, secret):
    (run.path / "logs").symlink_to(secret.parent)
    record = RunRecord(arm="none", seed=0, epochs=1)
    with pytest.raises(OSError, match="it is a link"):
        LocalPlace().start(record, run, run.path / "logs" / "none-0.log")
    assert names(secret.parent) == ["secret"]


def writing_calls(tree):
    """The calls in a module that write to a path, but for those that name our opener."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        texts = [part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        options = {option.arg: ast.unparse(option.value) for option in node.keywords}
        if name in ("write_text", "write_bytes", "mkdtemp", "copyfile", "tofile", "save_file"):
            yield name
        elif name in ("open", "FileIO") and options.get("opener") != "regular_file":
            modes = [text for text in [*texts, options.get("mode", "").strip("'")] if re.fullmatch("[rwaxbt+]+", text)]
            if any(set(mode) & set("wax+") for mode in modes):
                yield f"{name}({modes})"


def test_nothing_is_written_in_another_way():
    sources = Path(atomic.__file__).parents[1]
    found = {
        (str(file.relative_to(sources)), call)
        for file in sources.rglob("*.py")
        for call in writing_calls(ast.parse(file.read_text()))
    }
    assert found == set()


def test_who_takes_a_run_over_removes_what_was_left(run):
    (run.path / ".policy.json.0123456789abcdef.tmp").write_bytes(b"{")
    with run.locked():
        assert names(run.path) == [".lock", "config.json"]


def test_policies_galleries_and_downloads(tmp_path, secret):
    for name in ("policy.json", "gallery.png", "archive.part"):
        (tmp_path / name).symlink_to(secret)
    with pytest.raises(OSError, match="it is a link"):
        pa.TrivialAugment().save(tmp_path / "policy.json")
    with pytest.raises(OSError, match="it is a link"):
        write_gallery(tmp_path / "gallery.png", pa.Identity())
    with pytest.raises(OSError, match="it is a link"), part_file(tmp_path / "archive.part"):
        pass
    assert stat.S_ISLNK((tmp_path / "policy.json").lstat().st_mode)


def test_a_second_download_is_refused(tmp_path):
    with (
        part_file(tmp_path / "archive.part"),
        pytest.raises(DownloadError, match="is being downloaded by another process"),
        part_file(tmp_path / "archive.part"),
    ):
        pass
