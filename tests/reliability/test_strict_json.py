"""The one reader of JSON: what it refuses, how it names the place, and what it costs."""

import pytest

from particleaugment.util.strict_json import COSTLY_LIMIT, JSONError, clipped, parse_json


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON: Expecting value: line 1 column 1"),
        (b"{", "not valid JSON: Expecting property name"),
        (b'{"a": 1} x', "not valid JSON: Extra data"),
        (b"\xef\xbb\xbf{}", "not valid JSON: Unexpected UTF-8 BOM"),
        (b'{"a": "\xff"}', "byte 7 is not UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "byte 7 is not UTF-8"),
        (b'{"a": {"b": 1, "c": 2, "b": 3}}', "the field 'b' appears twice"),
        (b'{"a": [0, {"b": NaN}]}', r"a\[1\].b must be a finite number, got nan"),
        (b'{"a": [1.5, -Infinity]}', r"a\[1\] must be a finite number, got -inf"),
        (b"1e400", "the whole value must be a finite number, got inf"),
        (b'{"a": {"b": ' + b"9" * 10**6 + b"}}", r"a.b must be a number below 2\^64"),
        (b'{"a": [18446744073709551616, -18446744073709551616]}', r"a\[1\] must be a number below 2\^64"),
        (b'{"a": ["\\ud800"]}', r"a\[0\] contains unprintable characters"),
        (b'{"a": "\\u001b[2J"}', "a contains unprintable characters"),
        (b'{"a": {"\\u0000": 1}}', r"a field of a has an unprintable name, '\\x00'"),
        (b"[" * 33 + b"]" * 33, "it is nested more than 32 deep"),
        (b"[" * 10**6, "it is nested more than 32 deep"),
        (b'{"a":' * 10**5, "it is nested more than 32 deep"),
        (b"[" + b"[]," * (COSTLY_LIMIT + 1) + b"0]", "it contains more than 2,000,000 lists, objects and texts"),
    ],
)  # fmt: skip
def test_what_is_refused(content, message):
    with pytest.raises(JSONError, match=message) as caught:
        parse_json(content)
    assert len(str(caught.value)) < 500


def test_what_is_read():
    text = b'{"a": [1, -2.5e-3, true, null, "x\xc3\xa4"], "b": {"c": [[0.5, 0.25], []]}, "large": 18446744073709551615}'
    expected = {"a": [1, -0.0025, True, None, "xä"], "b": {"c": [[0.5, 0.25], []]}, "large": 2**64 - 1}
    assert parse_json(text) == expected
    assert parse_json(b"[" * 32 + b"]" * 32)
    assert parse_json(b"[1e308, 1e308]") == [1e308, 1e308], "their sum is not finite, they are"


def test_messages_stay_in_one_line():
    assert clipped("a\nb\x1b[2J") == "a b [2J"
    assert clipped("x" * 10**6).endswith(" ...")
