"""The commands of ``particleaugment policy`` that carry policies to and from other projects."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from particleaugment.util.atomic import write_atomically
from particleaugment.util.output import say
from particleaugment.util.shown import shortened

if TYPE_CHECKING:
    from particleaugment.policies import Policy

__all__ = ["Epoch", "PolicyFile", "add_commands", "policy_in"]

Out = Annotated[Path | None, typer.Option(metavar="PATH", help="Output file (default: print).")]

PolicyFile = Annotated[Path, typer.Argument(metavar="FILE", help="Policy file or run folder.")]

Epoch = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Epoch of a schedule (default: the last before augmentation fades out)."),
]


class Target(StrEnum):
    """What a policy can be exported to."""

    TIMM = "timm"
    TORCHVISION = "torchvision"
    JSON = "json"


class Source(StrEnum):
    """Whose published lists can be read."""

    FAST_AUTOAUGMENT = "fast-autoaugment"
    DADA = "dada"
    AUTOAUGMENT = "autoaugment"


def policy_in(file: Path) -> Policy:
    """Return the policy of a file, or of a run folder."""
    from particleaugment.policies import load

    return load(file / "policy.json" if file.is_dir() else file)


def add_commands(app: typer.Typer, clear_errors: Callable[[], AbstractContextManager[None]]) -> None:
    """Add ``export`` and ``import`` to the policy commands."""

    @app.command("export")
    def policy_export(
        file: PolicyFile,
        to: Annotated[Target, typer.Option(help="Target library.")],
        epoch: Epoch = None,
        out: Out = None,
    ) -> None:
        """Export a policy to another library, and say what is lost.

        A learned schedule is exported at one epoch, as weighted sub-policies.
        """
        with clear_errors():
            from particleaugment.policies.exports import export

            _write(*export(policy_in(file), to.value, epoch), out)

    @app.command("import")
    def policy_import(
        file: Annotated[
            Path, typer.Argument(metavar="FILE", help="Python file with published lists; it is not executed.")
        ],
        source: Annotated[Source, typer.Option("--from", help="The project that published it.")],
        name: Annotated[
            str | None, typer.Option("--name", metavar="NAME", help="Variable or function, if there are several.")
        ] = None,
        out: Out = None,
    ) -> None:
        """Convert a published list of sub-policies to a policy file."""
        with clear_errors():
            from particleaugment.policies.imports import import_policy
            from particleaugment.policies.policy import document

            policy, found = import_policy(file, source.value, name)
            note = (
                f"{shortened(found)}: {len(policy.sub_policies)} sub-policies, semantics {policy.semantics}. The "
                "published code resamples to the nearest pixel and fills with black: apply the policy with "
                "resample='nearest' and fill=(0, 0, 0) to do the same."
            )
            _write(document(policy), note, out)


def _write(text: str, note: str, out: Path | None) -> None:
    if out is None:
        print(text, end="")
        say(note, error=True)
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, text)
    say(f"wrote {out}")
    say(note)
