"""The native module, loaded when it is first used."""

import atexit
from functools import cache
from types import ModuleType

# For how many seconds the end of the program waits for GPUs.
_LIMIT = 5.0


@cache
def native() -> ModuleType:
    """Load the native module.

    Returns
    -------
    ModuleType
        The module ``zarrs_cuda._internal``.

    Raises
    ------
    ImportError
        If it is missing, or made for another machine.
    """
    try:
        from zarrs_cuda import _internal
    except ImportError as error:
        msg = (
            f"the native module of zarrs-cuda cannot be loaded: {error}. Install the wheel for this "
            "machine (`pip install --force-reinstall zarrs-cuda`); free-threaded builds of Python "
            "do not load it."
        )
        raise ImportError(msg) from error
    return _internal


@atexit.register
def _shut_down_devices() -> None:
    """End the use of GPUs, after the writers have stored their shards: functions at exit run last first."""
    if native.cache_info().currsize > 0:
        native().shut_down_devices(_LIMIT)
