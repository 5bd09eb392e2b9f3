"""A command of a comparison, in a process of its own that does not outlive the one that started it.

``python -m particleaugment.cli.worker resume RUN`` is ``particleaugment resume RUN``, but when the other end of its
standard input is closed (which the system does however the parent ends) it stops as after Ctrl-C: saved.
"""

from __future__ import annotations

import os
import signal
import threading

from particleaugment.cli.main import main

__all__: list[str] = []


def _stop_with_parent() -> None:
    # Not sys.stdin: a thread that waits inside it at exit holds a lock that the interpreter needs.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    main()
