"""Masks of numpy, which Zarr cannot store."""

from typing import Any

import numpy as np


def check_mask(elements: Any) -> None:
    """Check that no element is masked: what is below a mask would be stored as if it were valid.

    Raises
    ------
    ValueError
        If an element is masked.
    """
    if np.ma.isMaskedArray(elements) and np.ma.is_masked(elements):
        msg = (
            f"{int(np.ma.count_masked(elements))} of {elements.size} elements are masked, and an array of "
            "Zarr has no mask: their values would be stored as if they were valid. Give them a "
            "value of their own first (`elements.filled(value)`), or store what is below the mask "
            "(`elements.data`)"
        )
        raise ValueError(msg)
