"""Every public name is documented with an example that runs (doctests run with the suite)."""

import inspect

import pytest

import particleaugment as pa

NAMES = [name for name in pa.__all__ if inspect.isclass(getattr(pa, name)) or inspect.isfunction(getattr(pa, name))]


def texts(thing):
    yield thing.__doc__ or ""
    if inspect.isclass(thing):
        yield from ((member.__doc__ or "") for member in vars(thing).values() if callable(member))
        yield from (
            (member.__func__.__doc__ or "") for member in vars(thing).values() if isinstance(member, classmethod)
        )


@pytest.mark.parametrize("name", NAMES)
def test_public_names_have_examples(name):
    assert any(">>>" in text for text in texts(getattr(pa, name)))
