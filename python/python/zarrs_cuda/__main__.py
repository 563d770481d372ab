"""The command ``zarrs-cuda``: ``python -m zarrs_cuda``."""

from __future__ import annotations

import sys

from zarrs_cuda._native import native


def main() -> int:
    """Run the command with the arguments of this process.

    Returns
    -------
    int
        The exit code: 0 done, 1 failed, 2 wrong usage, 3 damage or differences found, 130 interrupted.
    """
    code: int = native().run_command(sys.argv[1:])
    return code


if __name__ == "__main__":
    sys.exit(main())
