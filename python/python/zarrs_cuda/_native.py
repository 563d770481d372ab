"""The native module, loaded when it is first used."""

from functools import cache
from types import ModuleType


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
