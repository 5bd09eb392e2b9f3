"""Policies from the lists that other projects publish as Python text; the text is read, never run."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from particleaugment.policies.changed_names import bound_names, changed_names, local_names
from particleaugment.policies.subpolicies import SubPolicies
from particleaugment.util.hints import nearest_name
from particleaugment.util.strict_json import JSONError, read_file

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
_LARGEST_FILE = 10 << 20
_LONGEST_LIST = 100_000


class Imported(NamedTuple):
    """A policy that was read, and the name of its list in the file."""

    policy: SubPolicies
    name: str


class _Unreadable(Exception):
    """An expression is not made of literals, names of literals and sums of lists."""


class _Found(NamedTuple):
    value: Any
    decorators: tuple[str, ...] = ()
    changed_in: int | None = None


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
        if len(lists) != 1:
            names = ", ".join(_first_names(lists))
            shape = "[[(op, probability, level), ...], ...]"
            raise ValueError(
                f"{path} holds several policies; choose one with --name: {names}"
                if lists
                else f"{path} holds no list of sub-policies, {shape}, that its code leaves alone"
            )
        name = next(iter(lists))
    if name not in lists:
        known = f"; it holds {', '.join(_first_names(lists))}" if lists else ""
        reason = "is computed by code, or is no list of sub-policies" if name in found else "is not in it"
        line = found[name].changed_in if name in found else None
        if line is not None:
            reason = f"may be changed by line {line}, which is not run; copy the list alone into a file"
        raise ValueError(f"{name!r} cannot be read from {path}: it {reason}{nearest_name(name, lists) or known}")
    _check_decorators(path, source, name, lists[name].decorators)
    form = FORMATS[source]
    steps = [[_step(step, form) for step in sub_policy] for sub_policy in lists[name].value]
    try:
        return Imported(SubPolicies(tuple(tuple(row) for row in steps), form.semantics), name)
    except ValueError as error:
        raise ValueError(f"{name} of {path} is not a policy of {source}: {error}") from None


def _check_decorators(path: Path, source: str, name: str, decorators: tuple[str, ...]) -> None:
    if decorators == (_TRANSLATED,) and source != "autoaugment":
        raise ValueError(f"{name} of {path} holds AutoAugment's levels; read it with --from autoaugment")
    if decorators not in ((), (_TRANSLATED,)):
        raise ValueError(f"{name} of {path} is changed by the decorator {decorators[0]}, which is not run")


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


def _first_names(lists: Mapping[str, _Found]) -> list[str]:
    """The names, one for each list: a list may have a second, longer one."""
    first = {id(found.value): name for name, found in reversed(list(lists.items()))}
    return [name for name, found in lists.items() if first[id(found.value)] == name]


def _read(path: Path) -> dict[str, _Found]:
    try:
        text = read_file(path, _LARGEST_FILE).decode("utf-8-sig")
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file in UTF-8; save it as such") from None
    except (OSError, JSONError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"{path} cannot be read: {reason}") from None
    try:
        return _found(ast.parse(text).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = str(error) if isinstance(error, (SyntaxError, ValueError)) else "it is nested too deeply"
        raise ValueError(f"{path} cannot be read as Python text: {reason}") from None


def _found(body: Sequence[ast.stmt]) -> dict[str, _Found]:
    known = bound_names(body)
    changed = changed_names(body, known)
    variables, _ = _assigned(body, {}, changed)
    found = {
        name: _returned(value, variables, known) if isinstance(value, ast.FunctionDef) else _Found(value)
        for name, value in variables.items()
    }
    return found | {name: _Found(None, changed_in=changed.get(name)) for name in known - found.keys()}


def _returned(function: ast.FunctionDef, variables: Mapping[str, Any], known: set[str]) -> _Found:
    own = local_names(function)
    changed = changed_names(function.body, known | own)
    scope = {name: value for name, value in variables.items() if name not in own and name not in changed}
    _, returned = _assigned(function.body, scope, changed)
    return _Found(returned, tuple(ast.unparse(decorator) for decorator in function.decorator_list))


def _assigned(
    body: Sequence[ast.stmt], scope: dict[str, Any], changed: Mapping[str, int]
) -> tuple[dict[str, Any], Any]:
    """Follow plain assignments; return the names with their values, and what a ``return`` gives (None if unknown).

    A name that anything else might change has no value, so that no list is taken for what it is not. The value of a
    function is its definition.
    """
    returned: Any = None
    returns = [node for statement in body for node in ast.walk(statement) if isinstance(node, ast.Return)]
    for statement in body:
        match statement:
            case ast.Assign(targets=targets, value=value) if all(isinstance(target, ast.Name) for target in targets):
                names = [target.id for target in targets if isinstance(target, ast.Name)]
                _assign(scope, names, value, changed)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                _assign(scope, [name], value, changed)
            case ast.Return(value=ast.expr() as value) if len(returns) == 1:
                try:
                    returned = _evaluated(value, scope)
                except _Unreadable:
                    returned = None
            case ast.FunctionDef(name=name):
                scope[name] = statement
            case ast.Import(names=imported) | ast.ImportFrom(names=imported):
                for alias in imported:
                    if alias.name == "*":
                        scope.clear()
                    scope.pop(alias.asname or alias.name.partition(".")[0], None)
            case _:
                for name in bound_names([statement]):
                    scope.pop(name, None)
    return scope, returned


def _assign(scope: dict[str, Any], names: list[str], value: ast.expr, changed: Mapping[str, int]) -> None:
    try:
        known = _evaluated(value, scope)
    except _Unreadable:
        known = None
    for name in names:
        if known is None or name in changed:
            scope.pop(name, None)
        else:
            scope[name] = known


def _evaluated(node: ast.expr, scope: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        if node.id not in scope:
            raise _Unreadable
        return scope[node.id]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _evaluated(node.left, scope), _evaluated(node.right, scope)
        if not isinstance(left, list) or not isinstance(right, list) or len(left) + len(right) > _LONGEST_LIST:
            raise _Unreadable
        return left + right
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        raise _Unreadable from None
