"""Attacks on folders: links and special files in the place of any file, and data that change under a run."""

from __future__ import annotations

import os
import random
import shutil
import socket
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from attack_sandbox import STATES, Finding, Sandbox
from PIL import Image

import particleaugment as pa
from particleaugment.compare.comparison import ComparisonFolder
from particleaugment.report.event_file import EventFile
from particleaugment.report.gallery import write_gallery
from particleaugment.training.checkpoint import save_checkpoint
from particleaugment.training.config import ConfigError
from particleaugment.training.run import RunError, RunFolder
from particleaugment.util.atomic import SaveError, new_folder, own_folder, write_atomically

NAMES = (
    ".lock", "config.json", "metrics.jsonl", "policy.json", "model.safetensors", "report.html", "given-policy.json",
    "tensorboard", "checkpoint-00000000.pt", "checkpoint-00000001.pt", "checkpoint-00000002.pt",
    "checkpoint-00000003.pt", "checkpoint-00000004.pt", "checkpoint-99999999.pt", ".model.safetensors.tmp",
    ".metrics.jsonl.0123456789abcdef.tmp", ".config.json.tmp", "checkpoint-0.pt", "tensorboard/events.out.tfevents.1",
)  # fmt: skip
COMPARISON = (".lock", "compare.json", "compare.html", "runs", "logs", "runs/none-0", ".compare.json.tmp")

Putter = Callable[[Path, Sandbox, random.Random], None]


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    elif os.path.lexists(place):
        place.unlink()


def _link(target: str) -> Putter:
    def put(place: Path, box: Sandbox, draw: random.Random) -> None:
        place.symlink_to(target.format(outside=box.outside, run=box.run, own=place))

    return put


def _moved(place: Path, box: Sandbox, draw: random.Random) -> None:
    """What was there, kept elsewhere."""
    kept = box.root / "kept" / place.name
    place.symlink_to(kept if os.path.lexists(kept) else box.outside / "secret")


def _second_name(place: Path, box: Sandbox, draw: random.Random) -> None:
    kept = box.root / "kept" / place.name
    os.link(kept if kept.is_file() and draw.random() < 0.8 else box.outside / "secret", place)


def _socket(place: Path, box: Sandbox, draw: random.Random) -> None:
    back = os.open(".", os.O_RDONLY)
    os.chdir(place.parent)  # its path must be short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(place.name)
    os.fchdir(back)
    os.close(back)


def _device(place: Path, box: Sandbox, draw: random.Random) -> None:
    name, number = draw.choice([("null", 3), ("zero", 5), ("full", 7), ("random", 8)])
    try:
        os.mknod(place, 0o666 | stat.S_IFCHR, os.makedev(1, number))
    except OSError:  # without the right to make one
        place.symlink_to(f"/dev/{name}")


def _linked_pipe(place: Path, box: Sandbox, draw: random.Random) -> None:
    os.mkfifo(box.outside / "pipe")
    place.symlink_to(box.outside / "pipe")


def _full_folder(place: Path, box: Sandbox, draw: random.Random) -> None:
    place.mkdir()
    (place / "file").write_text("x")


LINKS: Mapping[str, Putter] = {
    "a link to a file": _link("{outside}/secret"),
    "a link to a folder": _link("{outside}/folder"),
    "a link to nothing": _link("{outside}/new"),
    "a link to nothing in a folder": _link("{outside}/folder/new"),
    "a link to itself": _link("{own}"),
    "a link to another file of the run": _link("{run}/config.json"),
    "a relative link": _link("../outside/secret"),
    "a link to the file itself, elsewhere": _moved,
    "a second name": _second_name,
}
SPECIAL: Mapping[str, Putter] = {
    "a pipe": lambda place, box, draw: os.mkfifo(place),
    "a socket": _socket,
    "a device": _device,
    "a link to a pipe": _linked_pipe,
    "a link to /dev/zero": _link("/dev/zero"),
    "a link to standard input": _link("/dev/stdin"),
    "a folder": lambda place, box, draw: place.mkdir(),
    "a full folder": _full_folder,
}


def _put(kinds: Mapping[str, Putter], place: Path, box: Sandbox, draw: random.Random) -> str:
    """Put something in a file's place; what was there is kept beside the run."""
    (box.root / "kept").mkdir(exist_ok=True)
    if os.path.lexists(place) and not place.is_symlink() and (place.is_file() or place.is_dir()):
        keep = shutil.copytree if place.is_dir() else shutil.copyfile
        keep(place, box.root / "kept" / place.name)  # type: ignore[operator]
    _remove(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    name = draw.choice(list(kinds))
    kinds[name](place, box, draw)
    return name


def _writers(run: RunFolder) -> dict[str, Callable[[], object]]:
    """Everything that writes into a run's folder, called by itself."""

    def append() -> object:
        with run.locked():
            return run.append_metrics({"kind": "epoch", "epoch": 1})

    def events() -> None:
        file = EventFile(run.path / "tensorboard")
        file.add_scalar("a", 1.0, 1)
        file.close()

    def folder() -> None:
        with new_folder(run.path / "tensorboard"):
            pass

    return {
        ".lock": append,
        "metrics.jsonl": append,
        "config.json": run.with_data_in(Path("/elsewhere")).note_data,
        "policy.json": lambda: pa.TrivialAugment().save(run.policy),
        "report.html": lambda: write_atomically(run.path / "report.html", "x"),
        "model.safetensors": lambda: write_atomically(run.model, b"x"),
        "checkpoint-00000003.pt": lambda: save_checkpoint(run.path, {"a": 1}),
        "tensorboard": events,
        "tensorboard/events": events,
        "given-policy.json": lambda: write_gallery(run.given_policy, pa.Identity()),
        ".lock/x": lambda: own_folder(run.path / ".lock"),
        "folder": folder,
    }


def _attack_a_writer(kinds: Mapping[str, Putter], box: Sandbox, draw: random.Random) -> str:
    box.copy("memory-stopped")
    run = RunFolder.open(box.run)
    writers = _writers(run)
    name = draw.choice(list(writers))
    _put(kinds, box.run / draw.choice([name, name, draw.choice(NAMES)]), box, draw)
    found = box.call(writers[name], errors=(SaveError, RunError, OSError))
    return "refused" if isinstance(found, Exception) else "accepted"


def _attack_a_run(kinds: Mapping[str, Putter], box: Sandbox, draw: random.Random) -> str:
    kind, state = draw.choice(box.workshop.kinds), draw.choice(STATES)
    run = box.copy(f"{kind}-{state}")
    there = sorted(str(path.relative_to(run)) for path in run.rglob("*"))
    for _ in range(draw.choice([1, 1, 1, 2])):
        place = run / draw.choice([draw.choice(NAMES), draw.choice(there)])
        if place.parent.is_symlink() or not place.parent.is_dir():
            continue
        _put(kinds, place, box, draw)
    if draw.random() < 0.1:
        return "refused" if box.command("report", run).code else "accepted"
    return box.agreement(kind, to_the_end=draw.random() < 0.5)


def _attack_a_comparison(kinds: Mapping[str, Putter], box: Sandbox, draw: random.Random) -> str:
    box.copy("compare")
    folder = ComparisonFolder(box.run)
    plan = folder.read()
    assert plan is not None
    record = draw.choice(plan.runs)
    config = plan.arm(record.arm).config(plan.base, record.seed)
    _put(kinds, box.run / draw.choice(COMPARISON), box, draw)
    if draw.random() < 0.4:  # what a run that is still to do begins with
        opened = box.call(folder.open_run, record, config, errors=(OSError, RunError, ConfigError))
        return "refused" if isinstance(opened, Exception) else "accepted"
    found = box.command("compare", box.run, "--report", "-q")
    if not found.code and (ComparisonFolder(box.run).page.is_symlink() or (box.run / "compare.json").is_symlink()):
        raise Finding("compare --report has written through a link")
    return "refused" if found.code else "accepted"


def _attack_an_output(kinds: Mapping[str, Putter], box: Sandbox, draw: random.Random) -> str:
    box.run.mkdir()
    _put(kinds, box.run / "out", box, draw)
    policy = box.workshop.folder / "trivial.json"
    commands: list[tuple[object, ...]] = [
        ("policy", "export", policy, "--to", "json", "--out", box.run / "out"),
        ("policy", "gallery", policy, "--out", box.run / "out"),
        ("policy", "show", box.run / "out"),
        ("policy", "import", box.run / "out", "--from", "dada"),
        ("verify", box.run / "out"),
        ("report", box.run / "out"),
        ("resume", box.run / "out"),
        ("compare", box.run / "out", "--report"),
        ("compare", "digits", "--out", box.run / "out", "--set", "epochs=0"),
        ("train", "digits", "--out", box.run / "out", "--set", "epochs=0"),
        ("train", "digits", "--out", box.run / "new", "--set", f"policy=file:{box.run / 'out'}", "--set", "epochs=1"),
    ]
    found = box.command(*draw.choice(commands))
    return "refused" if found.code else "accepted"


def _attack_images(kinds: Mapping[str, Putter], box: Sandbox, draw: random.Random) -> str:
    kind = draw.choice([kind for kind in box.workshop.kinds if kind != "fixed"])
    box.copy(f"{kind}-stopped")
    data = Path(shutil.copytree(box.workshop.folder / "pictures", box.root / "data"))
    place = data / draw.choice(["lime", "plum", "lime/03.png", "lime/17.png", "plum/00.png", "plum/99.png", "third"])
    _put(kinds, place, box, draw)
    found = box.would_resume("--data-dir", data)
    return "refused" if found.code else _accepted_data(box, kind, data)


def links(box: Sandbox, draw: random.Random) -> str:
    """Links, hard ones too, at any name in a folder that is written to: nothing elsewhere changes."""
    ways = [_attack_a_writer, _attack_a_run, _attack_a_run, _attack_a_comparison, _attack_an_output, _attack_images]
    return draw.choice(ways)(LINKS, box, draw)


def special_files(box: Sandbox, draw: random.Random) -> str:
    """Pipes, sockets, devices and folders at any name: nothing blocks, and each is refused or passed over."""
    ways = [_attack_a_writer, _attack_a_run, _attack_a_run, _attack_a_comparison, _attack_an_output, _attack_images]
    return draw.choice(ways)(SPECIAL, box, draw)


# Changed data.


def _accepted_data(box: Sandbox, kind: str, data: Path) -> str:
    if box.finish(kind, "--data-dir", data).code:
        raise Finding("resume took the data and failed later")
    return "accepted"


def _two(data: Path, draw: random.Random) -> tuple[Path, Path]:
    one, other = draw.sample(sorted(data.rglob("*.png")), 2)
    return one, other


def _swap(data: Path, draw: random.Random) -> None:
    one, other = _two(data, draw)
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def _flip_pixel(data: Path, draw: random.Random) -> None:
    file, _ = _two(data, draw)
    with Image.open(file) as image:
        pixels = bytearray(image.tobytes())
    pixels[draw.randrange(len(pixels))] ^= 1 << draw.randrange(8)
    Image.frombytes("RGB", (8, 8), bytes(pixels)).save(file, compress_level=0)


def _flip_bit(data: Path, draw: random.Random) -> None:
    file, _ = _two(data, draw)
    content = bytearray(file.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    file.write_bytes(content)


def _resize(data: Path, draw: random.Random) -> None:
    file, _ = _two(data, draw)
    with Image.open(file) as image:
        image.resize((draw.randint(1, 30), draw.randint(1, 30))).save(file)


def _overwrite(data: Path, draw: random.Random) -> None:
    file, other = _two(data, draw)
    file.write_bytes(draw.choice([b"", b"\x89PNG", b"no image", file.read_bytes()[:100], other.read_bytes()]))


def _rename_class(data: Path, draw: random.Random) -> None:
    name = draw.choice(["lime", "plum"])
    (data / name).rename(data / draw.choice(["aaa", "zzz", f"{name}s"]))


def _swap_classes(data: Path, draw: random.Random) -> None:
    (data / "lime").rename(data / "x")
    (data / "plum").rename(data / "lime")
    (data / "x").rename(data / "plum")


def _move(data: Path, draw: random.Random) -> None:
    file, _ = _two(data, draw)
    file.rename(data / draw.choice(["lime", "plum"]) / draw.choice(["aa.png", "zz.png", f"x{file.name}"]))


def _add(data: Path, draw: random.Random) -> None:
    shutil.copy(
        _two(data, draw)[0], data / draw.choice(["lime", "plum"]) / draw.choice(["aa.png", "zz.png", "00b.png"])
    )


def _delete(data: Path, draw: random.Random) -> None:
    _two(data, draw)[0].unlink()


def _new_class(data: Path, draw: random.Random) -> None:
    (data / "third").mkdir()
    if draw.random() < 0.7:
        shutil.copy(_two(data, draw)[0], data / "third")


def _encode_otherwise(data: Path, draw: random.Random) -> None:
    file, _ = _two(data, draw)
    with Image.open(file) as image:
        image.load()
        image.save(file, compress_level=draw.randint(1, 9))


def _append(data: Path, draw: random.Random) -> None:
    file, _ = _two(data, draw)
    file.write_bytes(file.read_bytes() + b"x")


CHANGES = (_swap, _flip_pixel, _flip_bit, _resize, _overwrite, _rename_class, _swap_classes, _move, _add, _delete,
           _new_class, _encode_otherwise, _append)  # fmt: skip


def _touch(data: Path, draw: random.Random) -> None:
    for file in data.rglob("*.png"):
        os.utime(file, (draw.randrange(1 << 31),) * 2)


def _rewrite(data: Path, draw: random.Random) -> None:
    """The same files, made in another order."""
    contents = [(file, file.read_bytes()) for file in data.rglob("*.png")]
    for file, _ in contents:
        file.unlink()
    for file, content in draw.sample(contents, len(contents)):
        file.write_bytes(content)


def _leave(data: Path, draw: random.Random) -> None:
    """Moved, and nothing else."""


NEUTRAL = (_touch, _rewrite, _leave)


def changed_data(box: Sandbox, draw: random.Random) -> str:
    """Data that changed since a run was stopped: refused, or the result is the one that the old data give."""
    kind = draw.choice([kind for kind in box.workshop.kinds if kind != "fixed"])
    box.copy(f"{kind}-stopped")
    data = Path(shutil.copytree(box.workshop.folder / "pictures", box.root / "data"))
    neutral = draw.random() < 0.1
    for change in [draw.choice(NEUTRAL)] if neutral else draw.sample(CHANGES, draw.choice([1, 1, 2])):
        try:
            change(data, draw)
        except (OSError, ValueError):  # what the change before has left cannot be changed in this way
            continue
    found = box.would_resume("--data-dir", data)
    if found.code and neutral:
        raise Finding(f"data that only moved are refused: {found.stderr}")
    return "refused" if found.code else _accepted_data(box, kind, data)
