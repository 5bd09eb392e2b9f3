"""Which names of a Python text hold what its code may change: seen from the text, which is never run."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

__all__ = ["bound_names", "changed_names", "local_names"]

_READERS = ("len", "print")  # they leave what they are given as it is
_OWN_SCOPE = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def changed_names(body: Sequence[ast.stmt], known: AbstractSet[str]) -> dict[str, int]:
    """Return the names whose value more than an assignment may change, each with the line that may.

    A list that was assigned, added, indexed or returned has several names, and who changes it by one changes all. The
    order of the statements does not count, since functions are called at any time.

    Args:
        body: The statements of a module or a function.
        known: The names that the text itself gives to something; others, such as builtins, hold no list of its own.

    >>> text = "more = policies = [1]; more += [2]; other = [3]"
    >>> sorted(changed_names(ast.parse(text).body, {"more", "policies", "other"}))
    ['more', 'policies']
    """
    return _followed(body, known)[0]


def bound_names(body: Sequence[ast.stmt]) -> set[str]:
    """Return the names that statements assign, delete or define, in their own scope."""
    bound: set[str] = set()
    shared: set[str] = set()
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            shared.update(node.names)
        elif not isinstance(node, _OWN_SCOPE):
            waiting.extend(ast.iter_child_nodes(node))
    return bound - shared


def local_names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the names that mean something of a function's own: its parameters, and what it assigns.

    >>> sorted(local_names(ast.parse("def f(a, *b): global c; c = d = a").body[0]))
    ['a', 'b', 'd']
    """
    return bound_names(function.body) | {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}


def _followed(body: Sequence[ast.stmt], known: AbstractSet[str]) -> tuple[dict[str, int], set[str]]:
    """The changed names, and all that are mentioned; both without those of functions inside."""
    changed: dict[str, int] = {}
    mentioned: set[str] = set()
    sharing: list[set[str]] = []

    def change(names: AbstractSet[str], line: int) -> None:
        for name in names & known:
            changed.setdefault(name, line)

    for statement in body:
        names: AbstractSet[str]
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                own = local_names(statement)
                inside, names = _followed(statement.body, known | own)
                names -= own
                for name in inside.keys() - own:
                    change({name}, inside[name])
                # Whoever has the function may have what it returns.
                sharing.append({statement.name} | names)
                called_with = _names(statement.args, *statement.decorator_list)
                change(called_with | names if statement.decorator_list else called_with, statement.lineno)
            case ast.ClassDef():
                inside, names = _followed(statement.body, known)
                for name, line in inside.items():
                    change({name}, line)
                sharing.append({statement.name} | names)
                change(_names(*statement.bases, *statement.keywords, *statement.decorator_list), statement.lineno)
            case _:
                names = _names(statement)
                if not _is_plain(statement):
                    change(names, statement.lineno)
                elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
                    sharing.append(set(names & known))
        mentioned |= names & known
    _spread(changed, sharing, known)
    return changed, mentioned


def _is_plain(statement: ast.stmt) -> bool:
    """Whether a statement gives names to values, or none, and changes no value."""
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.Pass():
            return True
        case ast.Assign(targets=targets, value=value):
            return all(isinstance(target, ast.Name) for target in targets) and not _calls(value)
        case ast.AnnAssign(target=ast.Name(), value=None):
            return True
        case ast.AnnAssign(target=ast.Name(), value=ast.expr() as value):
            return not _calls(value)
        case ast.Return(value=ast.expr() as value) | ast.Expr(value=value):
            return not _calls(value)
        case ast.Delete(targets=targets):
            return all(isinstance(target, ast.Name) for target in targets)
        case _:
            return False


def _calls(node: ast.expr) -> bool:
    """Whether an expression may do more than read what its names hold."""
    return any(
        isinstance(part, (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr))
        or (isinstance(part, ast.Call) and not (isinstance(part.func, ast.Name) and part.func.id in _READERS))
        for part in ast.walk(node)
    )


def _names(*nodes: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in nodes:
        for part in ast.walk(node):
            if isinstance(part, (ast.Global, ast.Nonlocal)):
                found.update(part.names)
            for field in ("id", "name", "asname", "rest"):  # those of imports, handlers and patterns too
                text = getattr(part, field, None)
                if isinstance(text, str):
                    found.add(text.partition(".")[0])
    return found


def _spread(changed: dict[str, int], sharing: Sequence[set[str]], known: AbstractSet[str]) -> None:
    """Add the names that share a value with a changed one, directly or by others between."""
    groups: defaultdict[str, list[set[str]]] = defaultdict(list)
    for group in sharing:
        for name in group & known:
            groups[name].append(group)
    waiting = list(changed)
    while waiting:
        name = waiting.pop()
        for group in groups.pop(name, ()):
            for other in group:
                if other in known and other not in changed:
                    changed[other] = changed[name]
                    waiting.append(other)
            group.clear()
