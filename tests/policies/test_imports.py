"""Lists in the formats that Fast AutoAugment, DADA and AutoAugment were published in, made up for these tests."""

import json
import os

import pytest
from typer.testing import CliRunner

import particleaugment as pa
from particleaugment.cli.main import app
from particleaugment.policies.imports import import_policy

ARCHIVE = """
from __future__ import absolute_import
from collections import defaultdict
from Elsewhere.augmentations import get_augment

def summed():
    first = [
        [('Solarize', 0.6, 0.3), ('Equalize', 0.5, 0.6)],
        [('Cutout', 0.4, 0.1), ('AutoContrast', 0.6, 0.1)]]
    second = [
        [('TranslateY', 0.8, 0.9), ('TranslateX', 0.5, 0.75)]]

    return first + second

def plain():
    p = [[["Contrast", 0.83, 0.32], ["Sharpness", 0.74, 1.0]], [["Posterize", 0.18, 0.25], ["Invert", 1, 0]]]
    return p

def autoaug2arsaug(f):
    def autoaug():
        mapper = defaultdict(lambda: lambda x: x)
        return [[(n, p, mapper[n](v)) for n, p, v in sub] for sub in f()]
    return autoaug

@autoaug2arsaug
def translated():
    return [
        [('Invert', 0.1, 7), ('Posterize2', 0.2, 6)],
        [('TranslateXAbs', 0.7, 2), ('CutoutAbs', 0.3, 9)],
    ]

@something.else_("x")
def decorated():
    return [[('Invert', 0.1, 0.7)]]

def appended():
    p = [[('Invert', 0.1, 0.7)]]
    p.append([('Rotate', 0.1, 0.7)])
    return p

def looped():
    p = [[('Invert', 0.1, 0.7)]]
    for q in range(3):
        p = p + p
    return p

def replaced():
    p = [[('Invert', 0.1, 0.7)]]
    p[0] = [('Rotate', 0.1, 0.7)]
    return p

def branching(x):
    if x:
        return [[('Invert', 0.1, 0.7)]]
    return [[('Rotate', 0.1, 0.7)]]

def comprehended():
    return [[('Invert', x, 0.7)] for x in (0.1, 0.2)]

PARAMETER_MAX = 10
"""
GENOTYPE = """
SMALL = a_long_name_of_the_search = [[('TranslateX', 0.5, 0.57), ('Rotate', 0.6, 0.53)], [('Cutout', 1.02, -0.01)]]
OTHER: list = [[('Color', 0.44, 0.61)]]

# COMMENTED = [[('Rotate', 0.6, 0.53)]]
"""


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "archive.py"
    path.write_text(ARCHIVE)
    return path


@pytest.fixture
def genotype(tmp_path):
    path = tmp_path / "genotype.py"
    path.write_text(GENOTYPE)
    return path


def test_fast_autoaugment(archive):
    policy, name = import_policy(archive, "fast-autoaugment", "summed")
    assert name == "summed"
    assert policy == pa.SubPolicies(
        [
            [("Solarize", 0.6, 0.3), ("Equalize", 0.5, 0)],
            [("Cutout", 0.4, 0.1), ("AutoContrast", 0.6, 0)],
            [("TranslateY", 0.8, 0.9), ("TranslateX", 0.5, 0.75)],
        ],
        "fast-autoaugment",
    )
    plain = import_policy(archive, "fast-autoaugment", "plain").policy
    assert plain.sub_policies[0] == (("Contrast", 0.83, 0.32), ("Sharpness", 0.74, 1.0))


def test_autoaugments_lists_in_the_archive(archive):
    policy = import_policy(archive, "autoaugment", "translated").policy
    assert policy.semantics == "autoaugment-original"
    assert policy.sub_policies == (
        (("Invert", 0.1, 0.0), ("Posterize", 0.2, 6.0)),
        (("TranslateX", 0.7, 2.0), ("Cutout", 0.3, 9.0)),
    )
    with pytest.raises(
        ValueError, match=r"translated of .* holds AutoAugment's levels; read it with --from autoaugment"
    ):
        import_policy(archive, "fast-autoaugment", "translated")


def test_dada(genotype):
    for name in ("SMALL", "a_long_name_of_the_search"):
        policy = import_policy(genotype, "dada", name).policy
        assert policy.semantics == "fast-autoaugment"
        assert policy.sub_policies == (
            (("TranslateX", 0.5, 0.57), ("Rotate", 0.6, 0.53)),
            (("Cutout", 1.0, 0.0),),  # DADA's own code clamps what the search overshot
        )
    with pytest.raises(ValueError, match=r"holds several policies; choose one with --name: SMALL, OTHER$"):
        import_policy(genotype, "dada")
    with pytest.raises(
        ValueError, match=r"SMALL of .* is not a policy of fast-autoaugment: sub-policy 1: the probability"
    ):
        import_policy(genotype, "fast-autoaugment", "SMALL")


@pytest.mark.parametrize("name", ["appended", "looped", "replaced", "branching", "comprehended", "PARAMETER_MAX"])
def test_what_code_computes_is_not_guessed(archive, name):
    with pytest.raises(ValueError, match=f"'{name}' of .* is not a list of .*, written out and named nowhere"):
        import_policy(archive, "fast-autoaugment", name)


LISTED = "policies = [[('Rotate', 0.5, 0.5)]]\n"


@pytest.mark.parametrize(
    "code",
    [
        "more = policies\nmore += [[('Invert', 1.0, 0.5)]]",
        "policies.append([('Invert', 1.0, 0.5)])",
        "policies = policies + policies",
        "policies[0] = []",
        "if True:\n    policies = []",
        "def add(mine=policies):\n    mine.pop()\nadd()",
        "def replace():\n    global policies\n    policies = []\nreplace()",
        "globals()['policies'].pop()",
        "print(f'{policies.pop()}')",
        "from elsewhere import policies",
        "from elsewhere import lists as policies",
        "from elsewhere import *",
        "del policies",
        "class policies:\n    pass",
        "def policies():\n    return [[('Invert', 0.5, 0.5)]]",
    ],
)
def test_a_list_that_the_file_names_again_is_refused(tmp_path, code):
    (tmp_path / "list.py").write_text(LISTED + code + "\n")
    with pytest.raises(
        ValueError, match=r"'policies' of .* named nowhere else in the file; copy it into a file of its own$"
    ):
        import_policy(tmp_path / "list.py", "dada", "policies")


@pytest.mark.parametrize("code", ["other = x.y = [[('Rotate', 0.5, 0.5)]]\nx.y.pop()", "a = b = 1\na, b = 2, 3"])
def test_other_targets(tmp_path, code):
    (tmp_path / "list.py").write_text(LISTED + code + "\n")
    assert import_policy(tmp_path / "list.py", "dada").name == "policies"


def test_two_names_of_one_list(tmp_path):
    (tmp_path / "list.py").write_text("first = second = [[('Rotate', 0.5, 0.5)]]\nfirst.pop()\n")
    with pytest.raises(ValueError, match=r"'second' of .* is not a list"):
        import_policy(tmp_path / "list.py", "dada", "second")


@pytest.mark.parametrize(
    "inside",
    ["q = p\n    q.pop()", "def inner():\n        p.pop()\n    inner()", "q = [p]\n    q[0].pop()", "p += p", "p = 3"],
)
def test_what_a_function_may_change_is_refused(tmp_path, inside):
    (tmp_path / "list.py").write_text(f"def made():\n    p = [[('Rotate', 0.5, 0.5)]]\n    {inside}\n    return p\n")
    with pytest.raises(ValueError, match=r"'made' of .* is not a list of sub-policies"):
        import_policy(tmp_path / "list.py", "dada", "made")


def test_a_function_with_a_docstring(tmp_path):
    (tmp_path / "list.py").write_text(f'def made():\n    "Found."\n    {LISTED}    return policies\n')
    assert import_policy(tmp_path / "list.py", "dada").name == "made"


def test_other_decorators(archive):
    with pytest.raises(
        ValueError, match=r"decorated of .* is changed by the decorator something.else_\('x'\), which is"
    ):
        import_policy(archive, "fast-autoaugment", "decorated")


def test_names_that_are_not_there(archive, genotype):
    with pytest.raises(ValueError, match=r"'plan' of .* is not a list of sub-policies.*; did you mean plain"):
        import_policy(archive, "fast-autoaugment", "plan")
    with pytest.raises(ValueError, match=r"'zzz' of .* is not a list of sub-policies.*; it holds SMALL, OTHER"):
        import_policy(genotype, "dada", "zzz")
    with pytest.raises(ValueError, match="there is no list format 'dad'; did you mean dada"):
        import_policy(genotype, "dad")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no list of sub-policies"),
        ("X = [[('Rotate', 0.5)]]", "holds no list of sub-policies"),
        ("X = [[[('Rotate', 0.5, 0.5)]]]", "holds no list of sub-policies"),
        ("X = [[('Swirl', 0.5, 0.5)]]", "sub-policy 0: there is no op named 'Swirl'"),
        ("X = [[('SolarizeAdd', 0.5, 0.5)]]", "'fast-autoaugment' does not define SolarizeAdd"),
        ("X = [[('Rotate', 0.5, 7)]]", "the level of Rotate must be a number from 0 to 1"),
        ("X = [[('Rotate', '1', 0.5)]]", "the probability of Rotate must be a number from 0 to 1"),
        ("X = [[(", "cannot be read as Python text"),
        ("X = '\0'", "cannot be read as Python text"),
        ("X = " + "[" * 3000 + "]" * 3000, "cannot be read as Python text"),
    ],
)
def test_files_that_hold_no_policy(tmp_path, text, message):
    path = tmp_path / "list.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        import_policy(path, "fast-autoaugment")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match=r"there is no file .*nowhere\.py"):
        import_policy(tmp_path / "nowhere.py", "dada")
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="is not a text file"):
        import_policy(tmp_path / "binary.py", "dada")
    with open(tmp_path / "large.py", "wb") as file:
        file.truncate(2_000_000)
    with pytest.raises(ValueError, match="cannot be read: it is larger than 1 MiB, the limit for such files"):
        import_policy(tmp_path / "large.py", "dada")
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        import_policy(tmp_path, "dada")
    os.mkfifo(tmp_path / "pipe.py")
    with pytest.raises(ValueError, match="cannot be read: it is a pipe or a device, not a file"):
        import_policy(tmp_path / "pipe.py", "dada")


def test_a_byte_order_mark_is_not_part_of_the_text(tmp_path):
    (tmp_path / "marked.py").write_bytes(b"\xef\xbb\xbf" + b"X = [[('Rotate', 0.5, 0.25)]]\r\n")
    assert import_policy(tmp_path / "marked.py", "dada").policy.sub_policies == ((("Rotate", 0.5, 0.25),),)


def test_nothing_in_the_file_is_run(tmp_path):
    witness = tmp_path / "witness"
    path = tmp_path / "evil.py"
    path.write_text(
        f"open({str(witness)!r}, 'w')\n"
        f"X = [[('Rotate', 0.5, open({str(witness)!r}, 'w'))]]\n"
        f"def Y(a=open({str(witness)!r}, 'w')):\n    return [[('Rotate', 0.5, 0.25)]]\n"
    )
    assert import_policy(path, "dada").name == "Y"
    with pytest.raises(ValueError, match=r"'X' of .* is not a list"):
        import_policy(path, "dada", "X")
    assert not witness.exists()


def test_lists_that_double_stop(tmp_path):
    path = tmp_path / "doubling.py"
    path.write_text("def A():\n    p = " + repr([[("Rotate", 0.5, 0.25)]] * 2000) + "\n    return p" + " + p" * 60)
    with pytest.raises(ValueError, match="holds no list of sub-policies"):
        import_policy(path, "dada")


def test_the_command(archive, tmp_path):
    out = tmp_path / "new" / "policy.json"
    arguments = ["policy", "import", str(archive), "--from", "fast-autoaugment", "--name", "plain"]
    outcome = CliRunner().invoke(app, [*arguments, "--out", str(out)])
    assert outcome.exit_code == 0
    assert outcome.stdout.startswith(f"wrote {out}\nplain: 2 sub-policies, semantics fast-autoaugment. The published")
    assert "resample='nearest' and fill=(0, 0, 0)" in outcome.stdout
    assert pa.load_policy(out) == import_policy(archive, "fast-autoaugment", "plain").policy
    printed = CliRunner().invoke(app, arguments)
    assert json.loads(printed.stdout) == json.loads(out.read_text())
    assert printed.stderr.startswith("plain: 2 sub-policies")
    refused = CliRunner().invoke(app, arguments[:-2])
    assert refused.exit_code == 2
    assert refused.stderr.startswith(
        f"particleaugment: {archive} holds several policies; choose one with --name: summed,"
    )
