"""Policies from the lists that other projects publish as Python text; the text is read, never run."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from particleaugment.policies.subpolicies import SubPolicies
from particleaugment.util.hints import nearest_name
from particleaugment.util.reading import read_file
from particleaugment.util.shown import shortened
from particleaugment.util.strict_json import clipped

__all__ = ["FORMATS", "Imported", "import_policy"]


@dataclass(frozen=True)
class _Format:
    semantics: str
    clamps: bool = False
    renamed: Mapping[str, str] | None = None


FORMATS: Mapping[str, _Format] = {
    "fast-autoaugment": _Format("fast-autoaugment"),
    "dada": _Format("fast-autoaugment", clamps=True),
    "autoaugment": _Format(
        "autoaugment-original",
        # Fast AutoAugment's archive holds AutoAugment's lists under these names.
        renamed={
            "TranslateXAbs": "TranslateX",
            "TranslateYAbs": "TranslateY",
            "Posterize2": "Posterize",
            "CutoutAbs": "Cutout",
        },
    ),
}
"""The list formats that can be read, by the project that published them."""

_TRANSLATED = "autoaug2arsaug"  # the decorator in Fast AutoAugment's archive over lists with AutoAugment's levels
_WANTED = "list of sub-policies, [[(op, probability, level), ...], ...], written out and named nowhere else in the file"
_LARGEST_FILE = 1 << 20
_LONGEST_LIST = 10_000
_MOST_DEFINITIONS = 1000
_NAMES_SHOWN = 20


class Imported(NamedTuple):
    """A policy that was read, and the name of its list in the file."""

    policy: SubPolicies
    name: str


class _Found(NamedTuple):
    value: Any
    decorators: tuple[str, ...] = ()


def import_policy(path: str | Path, source: str, name: str | None = None) -> Imported:
    """Read a published list of sub-policies.

    Args:
        path: A Python file with lists of sub-policies, as variables or as functions that return them.
        source: Whose format and semantics it is in: a key of :data:`FORMATS`.
        name: The variable or function to take, where the file holds several.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "genotype.py")
    ...     _ = file.write_text("MINE = [[('Rotate', 0.7, 0.9), ('Cutout', 0.2, 0.5)]]")
    ...     import_policy(file, "dada").policy.sub_policies
    ((('Rotate', 0.7, 0.9), ('Cutout', 0.2, 0.5)),)
    """
    if source not in FORMATS:
        hint = nearest_name(source, FORMATS) or f"; the formats are {', '.join(FORMATS)}"
        raise ValueError(f"there is no list format {source!r}{hint}")
    path = Path(path)
    found = _read(path)
    lists = {key: item for key, item in found.items() if _looks_like_policies(item.value)}
    if name is None:
        if not lists:
            raise ValueError(f"{path} holds no {_WANTED}")
        if len(lists) > 1:
            raise ValueError(f"{path} holds several policies; choose one with --name: {_first_names(lists)}")
        name = next(iter(lists))
    if name not in lists:
        hint = nearest_name(name, lists) or (f"; it holds {_first_names(lists)}" if lists else "")
        raise ValueError(
            f"{shortened(name)!r} of {path} is not a {_WANTED}{hint or '; copy it into a file of its own'}"
        )
    _check_decorators(path, source, name, lists[name].decorators)
    if len(lists[name].value) > _LONGEST_LIST:
        raise ValueError(
            f"{shortened(name)} of {path} has {len(lists[name].value):,} sub-policies, and at most {_LONGEST_LIST:,} "
            "are read; take fewer"
        )
    form = FORMATS[source]
    steps = [[_step(step, form) for step in sub_policy] for sub_policy in lists[name].value]
    try:
        return Imported(SubPolicies(tuple(tuple(row) for row in steps), form.semantics), name)
    except ValueError as error:
        raise ValueError(f"{shortened(name)} of {path} is not a policy of {source}: {clipped(error)}") from None


def _check_decorators(path: Path, source: str, name: str, decorators: tuple[str, ...]) -> None:
    if decorators == (_TRANSLATED,) and source != "autoaugment":
        raise ValueError(f"{shortened(name)} of {path} holds AutoAugment's levels; read it with --from autoaugment")
    if decorators not in ((), (_TRANSLATED,)):
        raise ValueError(
            f"{shortened(name)} of {path} is changed by the decorator {shortened(decorators[0])}, which is not run"
        )


def _step(step: Sequence[Any], form: _Format) -> tuple[Any, Any, Any]:
    name, probability, level = step
    if form.clamps and all(isinstance(value, (int, float)) for value in (probability, level)):
        probability, level = min(max(probability, 0.0), 1.0), min(max(level, 0.0), 1.0)
    return (form.renamed or {}).get(name, name), probability, level


def _looks_like_policies(value: Any) -> bool:
    rows = isinstance(value, (list, tuple)) and len(value) > 0
    return rows and all(
        isinstance(row, (list, tuple))
        and len(row) > 0
        and all(isinstance(step, (list, tuple)) and len(step) == 3 and isinstance(step[0], str) for step in row)
        for row in value
    )


def _first_names(lists: Mapping[str, _Found]) -> str:
    """The names, one for each list: a list may have a second, longer one."""
    first = {id(found.value): name for name, found in reversed(list(lists.items()))}
    names = [name for name, found in lists.items() if first[id(found.value)] == name]
    more = f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(map(shortened, names[:_NAMES_SHOWN])) + more


def _read(path: Path) -> dict[str, _Found]:
    try:
        text = read_file(path, _LARGEST_FILE).decode("utf-8-sig")
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file in UTF-8; save it as such") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    try:
        body = ast.parse(text).body
        if len(body) > _MOST_DEFINITIONS:
            raise ValueError(f"it has {len(body):,} statements, and {_MOST_DEFINITIONS:,} are the most that are read")
        return _found(body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = str(error) if isinstance(error, (SyntaxError, ValueError)) else "it is nested too deeply"
        raise ValueError(f"{path} cannot be read as Python text: {clipped(reason)}") from None


def _found(body: Sequence[ast.stmt]) -> dict[str, _Found]:
    """Return the values of variables, and what functions return, where both are literals and are named once only."""
    # Every text of the tree: names, arguments, attributes, and strings, by which code may get at a name as well.
    texts = Counter(
        text
        for node in ast.walk(ast.Module(list(body), []))
        for _, field in ast.iter_fields(node)
        for text in (field if isinstance(field, list) else [field])
        if isinstance(text, str)
    )
    found: dict[str, _Found] = {}
    for statement in body:
        names, value, decorators = _defined(statement)
        if value is not None and all(texts[name] == 1 for name in names):
            found |= dict.fromkeys(names, _Found(value, decorators))
        if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
            found.clear()  # it may bring other values for them
    return found


def _defined(statement: ast.stmt) -> tuple[list[str], Any, tuple[str, ...]]:
    """The names that a statement gives to a value, the value (None if it is not a literal), and its decorators."""
    match statement:
        case ast.Assign(targets=targets, value=value) if all(isinstance(target, ast.Name) for target in targets):
            return [target.id for target in targets if isinstance(target, ast.Name)], _literal(value, {}), ()
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            return [name], _literal(value, {}), ()
        case ast.FunctionDef(name=name, body=[*assignments, ast.Return(value=ast.expr() as value)]):
            local: dict[str, Any] = {}
            for inner in assignments:
                match inner:
                    case ast.Assign(targets=[ast.Name(id=variable)], value=assigned):
                        local[variable] = _literal(assigned, {})
                    case ast.Expr(value=ast.Constant()):  # a docstring
                        pass
                    case _:
                        return [name], None, ()
            return [name], _literal(value, local), tuple(ast.unparse(node) for node in statement.decorator_list)
        case _:
            return [], None, ()


def _literal(node: ast.expr, local: Mapping[str, Any]) -> Any:
    """The value of a literal, of a variable that holds one, or of a sum of lists; None for anything else."""
    if isinstance(node, ast.Name):
        return local.get(node.id)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [_literal(part, local) for part in (node.left, node.right)]
        fits = all(isinstance(part, list) for part in parts) and sum(map(len, parts)) <= _LONGEST_LIST
        return parts[0] + parts[1] if fits else None
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return None
