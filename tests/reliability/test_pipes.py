"""A pipe or a device in the place of any file that is read: refused in one sentence, at once."""

import os
import shutil
import threading
import time

import pytest
from PIL import Image
from runs import StopAfter, command, finish, on_few

import particleaugment as pa
from particleaugment.data import load_cifar10, load_folder, load_mnist
from particleaugment.data.cifar import CIFAR10
from particleaugment.data.download import DownloadError, fetch
from particleaugment.data.idx import FILES
from particleaugment.policies.imports import import_policy

SECONDS = 20.0


@pytest.fixture
def pipe():
    """Puts pipes in the place of files; a reader that blocks is set free after a while, and then the test fails."""
    made, late = [], []

    def set_free():
        late.append(True)
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline and not done.is_set():
            for path in made:
                try:
                    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
                except OSError:
                    continue
            time.sleep(0.05)

    done = threading.Event()
    timer = threading.Timer(SECONDS, set_free)
    timer.start()

    def put(path):
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        made.append(path)
        return path

    yield put
    timer.cancel()
    done.set()
    assert not late, "a reader has blocked"


@pytest.fixture(scope="module")
def folders(tmp_path_factory, few_digits):
    """A finished run and one that was stopped."""
    made = tmp_path_factory.mktemp("runs")
    with on_few(few_digits):
        finish(made / "finished", "epochs=2")
        finish(made / "stopped", stop=StopAfter(8))
    return made


def one_sentence(outcome, code=1):
    assert outcome.exit_code == code, outcome.output
    assert len(outcome.stderr.splitlines()) == 1
    return outcome.stderr


OWN = [".lock", "config.json", "metrics.jsonl", "policy.json", "model.safetensors", "report.html", "checkpoint"]


@pytest.mark.parametrize("state", ["finished", "stopped"])
@pytest.mark.parametrize("name", OWN)
def test_the_files_of_a_run(folders, tmp_path, pipe, tiny, name, state):
    run = shutil.copytree(folders / state, tmp_path / "run")
    file = max(run.glob("checkpoint-*.pt")) if name == "checkpoint" else run / name
    pipe(file)
    outcome = command("verify", run)
    assert outcome.exit_code == 1
    assert "WRONG" in outcome.stdout
    if name != "config.json":
        assert file.name in one_sentence(command("resume", run, "-q"))
    if name in ("config.json", "metrics.jsonl", "policy.json"):
        assert file.name in one_sentence(command("report", run), code=2 if name == "policy.json" else 1)
    if name == "model.safetensors":
        with pytest.raises(ValueError, match=r"model.safetensors cannot be read: it is a pipe or a device"):
            pa.load_model(run)


@pytest.mark.parametrize("name", ["metrics.jsonl", "policy.json"])
def test_links_are_refused_before_anything_is_computed(folders, tmp_path, tiny, name):
    run = shutil.copytree(folders / "stopped", tmp_path / "run")
    elsewhere = (run / name).rename(tmp_path / name)
    before = elsewhere.read_bytes()
    (run / name).symlink_to(elsewhere)
    assert f"{run / name} is a link, a pipe or a device" in one_sentence(command("resume", run, "-q"))
    assert elsewhere.read_bytes() == before
    outcome = command("verify", run)
    assert outcome.exit_code == 1
    assert "\nbroken" in outcome.stdout
    run = shutil.copytree(folders / "finished", tmp_path / "finished")
    (run / name).rename(elsewhere)
    (run / name).symlink_to(elsewhere)
    assert command("verify", run).exit_code == 0, "what is never written again may be kept elsewhere"


@pytest.fixture
def pictures(tmp_path):
    for name, colour in (("lime", (190, 255, 0)), ("plum", (140, 70, 130))):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(6):
            Image.new("RGB", (20, 16), colour).save(tmp_path / "pictures" / name / f"{number}.png")
    return tmp_path / "pictures"


@pytest.mark.parametrize("settings", [["stream=false"], ["stream=true", "workers=0"], ["stream=true", "workers=1"]])
def test_a_pipe_among_the_images(pictures, tmp_path, pipe, settings):
    place = pipe(pictures / "lime" / "3.png")
    settings = ["epochs=1", "model=wrn-10-1", "image_size=16", "policy=none", "device=cpu", *settings]
    chosen = [word for setting in settings for word in ("--set", setting)]
    outcome = command("train", "folder", "--set", f"data_dir={pictures}", *chosen, "--out", tmp_path / "run", "-q")
    assert outcome.exit_code in (1, 2)
    assert f"{place} cannot be read: it is a pipe or a device, not a file" in one_sentence(outcome, outcome.exit_code)


def test_devices_and_huge_files_among_the_images(pictures):
    (pictures / "lime" / "zero.png").symlink_to("/dev/zero")
    with open(pictures / "plum" / "huge.png", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match="2 of 14 images cannot be used") as caught:
        load_folder(pictures, 16, quiet=True)
    assert "it is a pipe or a device" in str(caught.value)
    assert "huge.png is too large: 1,099,511,627,776 bytes are more than" in str(caught.value)


def test_the_files_of_data_sets(tmp_path, pipe):
    folder = tmp_path / CIFAR10.folder
    folder.mkdir()
    for name, size in CIFAR10.sizes().items():
        with open(folder / name, "wb") as file:
            file.truncate(size)
    pipe(folder / CIFAR10.class_names)
    with pytest.raises(ValueError, match=r"batches.meta.txt cannot be read: it is a pipe or a device"):
        load_cifar10(tmp_path)
    pipe(folder / CIFAR10.test)
    with pytest.raises(ValueError, match=r"test_batch.bin is missing"):
        load_cifar10(tmp_path)
    (tmp_path / "mnist").mkdir()
    for name in FILES:
        pipe(tmp_path / "mnist" / name)
    with pytest.raises(ValueError, match="has neither train-images-idx3-ubyte nor"):
        load_mnist(tmp_path)
    (tmp_path / "new").mkdir()
    pipe(tmp_path / "new" / "cifar-10-binary.tar.gz")
    with pytest.raises(DownloadError, match=r"cifar-10-binary.tar.gz cannot be read: it is a pipe or a device"):
        fetch("cifar10", tmp_path / "new", quiet=True)


def test_policies(tmp_path, pipe):
    file = pipe(tmp_path / "policy")
    with pytest.raises(ValueError, match="policy cannot be read: it is a pipe or a device"):
        pa.load_policy(file)
    with pytest.raises(ValueError, match="policy cannot be read: it is a pipe or a device"):
        import_policy(file, "dada")
    outcome = command("train", "--set", f"policy=file:{file}", "--out", tmp_path / "run", "-q")
    assert "it is a pipe or a device" in one_sentence(outcome, code=2)


def test_a_file_of_statistics(pictures, tmp_path, pipe, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    images = pa.data.list_folder(pictures)[0]
    expected = pa.data.folder_statistics(images, 16, quiet=True)
    [file] = (tmp_path / "cache" / "particleaugment").iterdir()
    pipe(file)
    assert pa.data.folder_statistics(images, 16, quiet=True) == expected
