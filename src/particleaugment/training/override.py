"""Settings given by name: ``--set KEY=VALUE`` on the command line, keywords in Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from particleaugment.core.op_table import named_set
from particleaugment.models import check_model
from particleaugment.search.filter_base import Filter
from particleaugment.search.filters import FILTERS
from particleaugment.training.config import SECTIONS, TOP, Config, kinds_of
from particleaugment.training.settings import ConfigError
from particleaugment.training.values import from_json_value, from_text
from particleaugment.util.hints import nearest_name

__all__ = ["assigned", "is_filter_setting", "override", "with_settings"]

Presets = Mapping[str, Filter[Any]]
_USUAL_NAMES = {"lr": "learning_rate", "wd": "weight_decay", "bs": "batch_size", "batch": "batch_size"}
"""What others call some of the settings."""
_CHOSEN_BY_NAME = {"name", "kind"}  # data=NAME and filter=KIND


def override(
    config: Config,
    assignments: Sequence[str],
    presets: Presets | None = None,
    first: Mapping[str, Any] | None = None,
) -> Config:
    """Return a configuration with settings replaced, each given as ``key=value``.

    A key is a path, such as ``filter.eta``, or its last part. ``filter=KIND`` and ``data=NAME`` choose these; other
    settings are theirs, whatever the order.

    Args:
        config: The configuration.
        assignments: What to change.
        presets: The filters that ``filter=KIND`` stands for, where they are not the usual ones.
        first: Settings to change before that, by name; values are as they stand in a configuration.

    >>> config = override(Config(recipe="mine"), ["eta=0.5", "filter=paper", "training.epochs=4"])
    >>> config.filter.eta, config.training.epochs
    (0.5, 4)
    >>> override(Config(recipe="mine"), ["eta=0.5"])
    Traceback (most recent call last):
    particleaugment.training.settings.ConfigError: eta is a setting of the filter 'paper', but this run uses ...
    """
    values = [(name, value, False) for name, value in (first or {}).items()]
    return _changed(config, [*values, *((*assigned(each), True) for each in assignments)], presets)


def with_settings(config: Config, settings: Mapping[str, Any], presets: Presets | None = None) -> Config:
    """Return a configuration with settings replaced, by name; values are as they stand in it, or objects.

    >>> with_settings(Config(recipe="mine"), {"epochs": 4, "data": "folder:/images"}).data.data_dir
    '/images'
    """
    return override(config, (), presets, settings)


def assigned(assignment: str) -> tuple[str, str]:
    """Return the key and the value of ``key=value``."""
    key, separator, text = assignment.partition("=")
    if not separator:
        raise ConfigError(f"{assignment!r} is not of the form key=value")
    return key.strip().replace("-", "_"), text.strip()


def _changed(config: Config, settings: Iterable[tuple[str, Any, bool]], presets: Presets | None) -> Config:
    given = list(settings)
    sections = {section: getattr(config, section) for section in SECTIONS}
    changes: dict[str, dict[str, Any]] = {section: {} for section in ("", *SECTIONS)}
    # Sections first: what else is set is a setting of the filter and the data that are chosen.
    for key, value, _ in given:
        if key == "filter" and isinstance(value, str):
            sections[key] = _filter_called(value, presets)
        elif key == "data" and isinstance(value, str):
            name, colon, place = value.partition(":")
            changes[key] |= {"name": name} | ({"data_dir": place} if colon else {})
        elif key in SECTIONS:
            sections[key] = _section(config, key, value)
    directory = changes["data"].get("data_dir", "")
    for key, value, is_text in given:
        if key in SECTIONS:
            continue
        section, name, kind = _place(sections, key)
        if is_text:
            value = from_text(key, value, kind)
            value = named_set(value) if name == "ops" else value
        else:
            value = from_json_value(key, list(value) if isinstance(value, tuple) else value, kind)
        if name == "data_dir" and directory not in ("", value):
            chosen = changes["data"]["name"]
            raise ConfigError(f"the data set {chosen!r} has two directories, {directory} and {value}; name one")
        changes[section][name] = value
    try:
        if "model" in changes[""]:
            check_model(changes[""]["model"])
        changed = {section: replace(sections[section], **changes[section]) for section in SECTIONS}
        return replace(config, **changed, **changes[""])
    except ConfigError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from None


def _filter_called(kind: str, presets: Presets | None) -> Filter[Any]:
    if kind not in FILTERS:
        hint = nearest_name(kind, FILTERS) or f"; the filters are {', '.join(FILTERS)}"
        raise ConfigError(f"there is no filter {kind!r}{hint}")
    return (presets or {}).get(kind) or FILTERS[kind]()


def _section(config: Config, section: str, value: Any) -> Any:
    wanted = Filter if section == "filter" else type(getattr(config, section))
    if isinstance(value, wanted):
        return value
    if isinstance(value, str):
        example = next(iter(kinds_of(wanted)))
        raise ConfigError(f"{section} has several settings; set one of them, such as {section}.{example}")
    raise ConfigError(f"{section} must be a {wanted.__name__}, got {type(value).__name__}")


def _place(sections: Mapping[str, Any], key: str) -> tuple[str, str, Any]:
    """Return the section of a setting (nothing for the top), its name there, and its type."""
    kinds = {section: _settings(type(value)) for section, value in sections.items()}
    kinds[""] = {name: kinds_of(Config)[name] for name in TOP}
    path, dot, name = key.rpartition(".")
    if dot and path not in SECTIONS:
        raise ConfigError(f"there is no section {path!r}{nearest_name(path, SECTIONS)}")
    places = [section for section in kinds if name in kinds[section] and (not dot or section == path)]
    if places:
        return places[0], name, kinds[places[0]][name]
    if not dot or path == "filter":
        others = [kind for kind, other in FILTERS.items() if name in _settings(other)]
        if others:
            raise ConfigError(
                f"{name} is a setting of the filter {others[0]!r}, but this run uses {sections['filter'].kind!r}; add "
                f"filter={others[0]}, or omit {name}"
            )
    elsewhere = [f"{section}.{name}".lstrip(".") for section in kinds if dot and name in kinds[section]]
    if elsewhere:
        raise ConfigError(f"there is no setting {key!r}; did you mean {elsewhere[0]}?")
    known = list(kinds[path]) if dot else [*SECTIONS, *(each for section in kinds.values() for each in section)]
    close = f"; did you mean {_USUAL_NAMES[name]}?" if name in _USUAL_NAMES else nearest_name(name, known)
    hint = close or f"; the settings are {', '.join(known)}"
    raise ConfigError(f"there is no setting {key!r}{hint}")


def _settings(section: type) -> dict[str, Any]:
    return {name: kind for name, kind in kinds_of(section).items() if name not in _CHOSEN_BY_NAME}


def is_filter_setting(key: str, filter: Filter[Any] | None = None) -> bool:
    """Whether a key is a setting of a filter; by default, of any.

    >>> is_filter_setting("eta"), is_filter_setting("filter.eta", FILTERS["difficulty"]()), is_filter_setting("epochs")
    (True, False, False)
    """
    path, dot, name = key.rpartition(".")
    kinds = FILTERS.values() if filter is None else (type(filter),)
    return (path == "filter" or not dot) and any(name in _settings(kind) for kind in kinds)
