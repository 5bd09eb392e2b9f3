"""Two versions of the package, each in a folder of its own, and processes that see nothing but one of them."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from same_results_cases import NEW_NAMES_SINCE

__all__ = ["ROOT", "Version", "VersionError", "checked_out", "end_processes"]

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 900
"""Seconds that one process may take."""
_STARTED: list[subprocess.Popen[bytes]] = []


class VersionError(RuntimeError):
    """A version cannot be had, or a command of it failed."""


@dataclass(frozen=True)
class Version:
    """The sources of one version.

    Attributes:
        label: OLD or NEW.
        name: What it is: a commit, with what is changed in the working tree, or a folder.
        root: The folder that has its ``src``.
        home: A folder for its processes' caches and temporary files, so that versions do not share any.
    """

    label: str
    name: str
    root: Path
    home: Path

    @property
    def new_names(self) -> bool:
        """Whether names in it are the new ones; see ``NEW_NAMES_SINCE``."""
        return self.label == "NEW" if NEW_NAMES_SINCE is None else (self.root / NEW_NAMES_SINCE).exists()

    def has_word(self, word: str) -> bool:
        """Whether a name occurs in its sources."""
        sources = (self.root / "src").rglob("*.py")
        return any(word in path.read_text(encoding="utf-8") for path in sources)

    def environment(self, gpu: bool = False) -> dict[str, str]:
        """Return all variables that its processes have; each has one thread, and the GPU if it may use it."""
        found = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "HOME": str(self.home),
            "TMPDIR": str(self.home),
            "NUMBA_CACHE_DIR": str(self.home / "numba"),
            "PYTHONPATH": str(self.root / "src"),
            "PYTHONHASHSEED": "0",
            "PYTHONNOUSERSITE": "1",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
        }
        if not gpu:
            return found | {"CUDA_VISIBLE_DEVICES": ""}
        kept = ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH")
        return found | {name: os.environ[name] for name in kept if name in os.environ}

    def start(self, words: list[str], folder: Path, *, gpu: bool = False) -> subprocess.Popen[bytes]:
        """Start Python with these arguments; what it prints goes to ``log.txt`` in a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "log.txt", "ab") as log:
            process = subprocess.Popen(
                [sys.executable, *words],
                cwd=folder,
                env=self.environment(gpu),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        _STARTED.append(process)
        return process

    def run(self, words: list[str], folder: Path, *, gpu: bool = False) -> str:
        """Run Python with these arguments to its end and return what was printed in the folder so far."""
        process = self.start(words, folder, gpu=gpu)
        try:
            code = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            end_processes()
            raise VersionError(f"{self.label} did not end within {LIMIT} seconds: {shlex.join(words)}") from None
        text = (folder / "log.txt").read_text(errors="replace")
        if code:
            lines = [line for line in text.splitlines() if line.strip()]
            raise VersionError(f"{self.label} failed with code {code}: {lines[-1] if lines else 'it printed nothing'}")
        return text

    def check_sources(self) -> None:
        """Make sure that its processes import its own sources, not those of an installed package."""
        program = "from importlib.util import find_spec; print(find_spec('particleaugment').origin)"
        found = Path(self.run(["-c", program], self.home / "check").splitlines()[-1])
        if not found.is_relative_to(self.root):
            raise VersionError(f"{self.label} is in {self.root}, but Python imports {found}")


def end_processes() -> None:
    """End what is still running, with the processes that it has started."""
    for process in _STARTED:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)


@contextmanager
def checked_out(label: str, wanted: str | None, temporary: Path) -> Iterator[Version]:
    """Put a version's sources into a temporary folder.

    Args:
        label: OLD or NEW.
        wanted: A commit, a folder that has ``src``, or None for the working tree as it is now.
        temporary: Where its folders go.
    """
    home, root = temporary / f"{label.lower()}-home", temporary / label.lower()
    home.mkdir()
    if wanted is None or (Path(wanted) / "src").is_dir():
        source = ROOT if wanted is None else Path(wanted)
        # A copy, so that the version does not change while it is compared.
        shutil.copytree(source / "src", root / "src", ignore=shutil.ignore_patterns("__pycache__"))
        yield Version(label, _described() if wanted is None else str(source), root, home)
        return
    commit = _git("rev-parse", "--verify", "--quiet", f"{wanted}^{{commit}}")
    if not commit:
        raise VersionError(f"{wanted!r} is neither a commit of {ROOT} nor a folder with src; give one of them")
    _git("worktree", "add", "--detach", str(root), commit)
    if not (root / "src").is_dir():
        raise VersionError(f"commit {wanted} could not be checked out to {root}; try git worktree prune")
    try:
        yield Version(label, commit, root, home)
    finally:
        _git("worktree", "remove", "--force", str(root))


def _described() -> str:
    commit = _git("rev-parse", "HEAD") or "no commit"
    return f"{commit} with changes" if _git("status", "--porcelain", "--", "src") else commit


def _git(*words: str) -> str:
    """Return what a git command prints, or nothing where it fails."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
