"""What reaches a terminal: nothing that it would act on, wherever a name or a phrase comes from."""

import io
import os
import socket
import threading
import time

import pytest
from PIL import Image
from rich.table import Table
from runs import command

from particleaugment.data.cifar import CIFAR10
from particleaugment.data.download import Archive, DownloadError, fetch
from particleaugment.policies.imports import import_policy
from particleaugment.training.display import Display
from particleaugment.util.hints import nearest_name
from particleaugment.util.output import Output, say
from particleaugment.util.shown import printable, printable_lines

ESCAPE = "\x1b]0;owned\x07\x1b[2J"


def harmless(text):
    return all(line.isprintable() for line in text.split("\n"))


def test_texts():
    assert printable("photo\x1b[2J\n\x9b.png") == "photo?[2J??.png"
    assert printable(os.fsdecode(b"\xff.png")) == "?.png"
    assert printable("Grüße, 日本") == "Grüße, 日本"
    assert printable_lines("one\ntwo\x1b[2J\r\n") == "one\ntwo?[2J?\n"


@pytest.fixture
def pictures(tmp_path):
    """Class folders, one with an escape in its name, and a damaged image with one in its."""
    for name in ("lime", f"plum{ESCAPE}"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(6):
            Image.new("RGB", (20, 16), (9 * number, 99 - number, 5 * number)).save(
                tmp_path / "pictures" / name / f"{number}.png"
            )
    return tmp_path / "pictures"


def train(pictures, *settings, out="run"):
    chosen = [f"data_dir={pictures}", "epochs=1", "model=wrn-10-1", "image_size=16", "policy=none", "device=cpu"]
    options = [word for setting in [*chosen, *settings] for word in ("--set", setting)]
    return command("train", "folder", *options, "--out", pictures.parent / out)


@pytest.mark.parametrize("stream", ["stream=false", "stream=true"])
def test_names_of_images_and_classes(pictures, stream):
    outcome = train(pictures, stream, "workers=0")
    assert outcome.exit_code == 0, outcome.output
    assert "plum?]0;owned??[2J" in outcome.stdout
    assert harmless(outcome.stdout + outcome.stderr)
    (pictures / "lime" / f"7{ESCAPE}.png").write_bytes(b"no image")
    outcome = train(pictures, stream, "workers=0", out="second")
    assert outcome.exit_code in (1, 2)
    assert "7?]0;owned??[2J.png is not a readable JPEG" in outcome.stderr
    assert harmless(outcome.stdout + outcome.stderr)
    assert len(outcome.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("verify", "{}"),
        ("resume", "{}"),
        ("report", "{}"),
        ("compare", "{}", "--report"),
        ("policy", "show", "{}"),
        ("policy", "gallery", "{}"),
        ("policy", "import", "{}", "--from", "dada"),
        ("data", "cifar10", "{}/file"),
        ("data", "{}", "elsewhere"),
        ("train", "{}"),
        ("train", "--set", "data_dir={}"),
        ("train", "--set", "policy=file:{}"),
        ("compare", "digits", "--arms", "{}"),
    ],
)
def test_names_that_a_command_repeats(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    os.mkdir(f"f{ESCAPE}")
    with open(f"f{ESCAPE}/file", "w") as file:
        file.write("x")
    outcome = command(*(word.format(f"f{ESCAPE}") for word in arguments))
    assert outcome.exit_code != 0
    assert harmless(outcome.stdout + outcome.stderr)


def test_where_a_policy_was_written(tmp_path):
    outcome = command("policy", "gallery", "--out", tmp_path / f"{ESCAPE}.png")
    assert outcome.exit_code == 0
    assert outcome.stdout.endswith("?]0;owned??[2J.png\n")


def download_from_a_server_that_answers(reply, folder):
    """Return the message of the error that a download must end with."""
    listening = socket.create_server(("127.0.0.1", 0))

    def answer():
        with listening, listening.accept()[0] as connection:
            connection.recv(1 << 16)
            connection.sendall(reply)

    thread = threading.Thread(target=answer)
    thread.start()
    address = f"http://127.0.0.1:{listening.getsockname()[1]}/archive.tar.gz"
    archive = Archive(layout=CIFAR10, url=address, md5="0" * 32, size=10)
    with pytest.raises(DownloadError) as caught:
        fetch("cifar10", folder, archive=archive, quiet=True, tries=1)
    thread.join()
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000
    return str(caught.value)


def test_a_servers_reason(tmp_path):
    reply = b"HTTP/1.1 404 Gone \x1b]0;owned\x07\x1b[2J\x9b2J\r\nContent-Length: 0\r\n\r\n"
    assert "the server returned 404 Gone" in download_from_a_server_that_answers(reply, tmp_path)


@pytest.mark.parametrize("length", [b"9" * 5000, b"\xb2", b"-1", b"1_0"])
def test_a_server_that_announces_nonsense(tmp_path, length):
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: " + length + b"\r\n\r\n0123456789"
    assert "has the checksum" in download_from_a_server_that_answers(reply, tmp_path)


@pytest.mark.parametrize("place", [b"http://[", b"http://x:y/", b"file:///etc/passwd", b"\x1b[2J:"])
def test_a_server_that_sends_on_to_nonsense(tmp_path, place):
    reply = b"HTTP/1.1 302 Found\r\nLocation: " + place + b"\r\nContent-Length: 0\r\n\r\n"
    download_from_a_server_that_answers(reply, tmp_path)


def test_tables_and_lines_of_our_output():
    console = Output()
    console.file = io.StringIO()
    table = Table(title=f"title{ESCAPE}")
    table.add_column(f"head{ESCAPE}")
    table.add_row(f"cell{ESCAPE}")
    console.print(table)
    console.print(f"a line{ESCAPE}\nand another{ESCAPE}", soft_wrap=True)
    Display(console=console).say(f"said{ESCAPE}")
    written = console.file.getvalue()
    assert harmless(written)
    for word in ("title", "head", "cell", "a line", "and another", "said"):
        assert f"{word}?]0;owned??[2J" in written


def test_what_is_said(capsys):
    say(f"one{ESCAPE}\ntwo")
    say(f"three{ESCAPE}", error=True)
    assert capsys.readouterr() == ("one?]0;owned??[2J\ntwo\n", "three?]0;owned??[2J\n")


# Lists that take long to read.


def seconds(work):
    start = time.process_time()
    work()
    return time.process_time() - start


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("".join(f"v{number} = [[('Rotate', 0.7, 0.9)]]\n" for number in range(20_000)), "it has 20,000 statements"),
        ("x = [" + "[('Rotate', 0.7, 0.9)]," * 20_000 + "]", "has 20,000 sub-policies, and at most 10,000 are read"),
        ("x = [" + "1," * 600_000 + "]", "it is larger than 1 MiB"),
        ("x = " + "[" * 100_000, "cannot be read as Python text"),
        ("x = " + "+".join(["[]"] * 100_000), "cannot be read as Python text"),
        ("x = " + "-" * 500_000 + "1", "cannot be read as Python text"),
        ("x = 9" + "9" * 500_000, "cannot be read as Python text"),
    ],
    ids=["definitions", "sub-policies", "bytes", "brackets", "sums", "signs", "digits"],
)
def test_lists_that_are_too_long(tmp_path, text, message):
    file = tmp_path / "archive.py"
    file.write_text(text)

    def read():
        with pytest.raises(ValueError, match=message) as caught:
            import_policy(file, "dada", "v12345x")
        assert len(str(caught.value)) < 1000

    def read_without_a_name():
        with pytest.raises(ValueError, match=message):
            import_policy(file, "dada")

    assert seconds(read_without_a_name if "x = " in text else read) < 10


def test_as_many_as_are_read(tmp_path):
    file = tmp_path / "archive.py"
    file.write_text("".join(f"v{number} = [[('Rotate', 0.7, 0.9)]]\n" for number in range(1000)))
    assert import_policy(file, "dada", "v999").name == "v999"
    with pytest.raises(ValueError, match=r"choose one with --name: v0, v1, .*, v19 and 980 more") as caught:
        import_policy(file, "dada")
    assert len(str(caught.value)) < 400


LONG = "n" * 5000


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (f"{LONG} = [[('Rotate', 0.7, 0.9)]]", "other"),
        (f"{LONG} = [[('Rotate', 0.7, 0.9)]]", "m" * 5000),
        ("".join(f"{LONG}{number} = [[('Rotate', 0.7, 0.9)]]\n" for number in range(25)), None),
        (f"{LONG} = [[('Rotate', 70, 0.9)]]", None),
        (f"x = [[('{LONG}', 0.7, 0.9)]]", None),
        (f"{LONG} = [" + "[('Rotate', 0.7, 0.9)]," * 10_001 + "]", None),
        (f"@{LONG}\ndef {LONG}x():\n    return [[('Rotate', 0.7, 0.9)]]", None),
    ],
)
def test_long_names_make_no_long_message(tmp_path, text, name):
    file = tmp_path / "archive.py"
    file.write_text(text)
    source = "fast-autoaugment"
    with pytest.raises(ValueError, match=r"archive\.py|nnn") as caught:
        import_policy(file, source, name)
    assert len(str(caught.value)) < 2000


def test_no_name_is_looked_for_among_too_many():
    names = [f"name{number}" for number in range(50_000)]
    assert seconds(lambda: nearest_name("name1234x", names)) < 1
    assert nearest_name("nane7", names[:1000]) == "; did you mean name7?"
