"""The command line ``tensortap``: ls, info, meta, get, pull, head and diff, against a service somewhere else.

It needs ``click`` and ``rich``: ``pip install 'tensortap[cli]'``.
"""

import sys

from ._exits import USAGE

__all__ = ["main"]


def main() -> None:
    """Run the command of ``sys.argv`` and exit with its code; `tensortap.cli._exits` has the codes."""
    try:
        from ._main import tensortap
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        print(f"tensortap: the command line needs {error.name}: pip install 'tensortap[cli]'", file=sys.stderr)  # noqa: T201
        sys.exit(USAGE)
    tensortap(prog_name="tensortap")
