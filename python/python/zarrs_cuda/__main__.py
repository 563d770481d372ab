"""The command ``zarrs-cuda``: ``python -m zarrs_cuda``."""

from __future__ import annotations

import signal
import sys

from zarrs_cuda import _decode_with, _devices, _tasks
from zarrs_cuda._native import native

# The questions that wrong settings do not keep from an answer.
_ANSWERED = ("--help", "-h", "--version", "-V", "help")


def main() -> int:
    """Run the command with the arguments of this process.

    The settings of GPUs in ``zarr.config``, which ``configure`` also leaves in the environment, hold where no
    variable ``ZARRS_CUDA_…`` is set. nvCOMP is looked for among the packages of this Python.

    Returns
    -------
    int
        The exit code: 0 done, 1 failed, 2 wrong usage, 3 damage or differences found, 130 interrupted.
    """
    try:
        _devices.to_variables()
    except ValueError as error:
        if not any(word in _ANSWERED for word in sys.argv[1:]):
            print(f"error: {error}", file=sys.stderr)
            return 1
    _tasks.follow_input()
    if _decode_with.is_help_asked(sys.argv[1:]):
        helped: int = native().run_command(_decode_with.without(sys.argv[1:]))
        print(_decode_with.HELP)
        return helped
    if _decode_with.is_asked(sys.argv[1:]):
        # SIGTERM ends it as Ctrl-C does: what it has begun is deleted.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        return _decode_with.command(sys.argv[1:])
    code: int = native().run_command(sys.argv[1:])
    return code


if __name__ == "__main__":
    sys.exit(main())
