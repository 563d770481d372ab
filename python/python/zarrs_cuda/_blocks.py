"""Blocks of Dask, whose borders are moved so that no two of them write the same chunk."""

import itertools


def moved(sizes: tuple[int, ...], step: int, offset: int = 0) -> tuple[int, ...]:
    """Move the borders between blocks to borders of chunks.

    Parameters
    ----------
    sizes
        The sizes of the blocks along an axis.
    step
        The size of chunks along the axis.
    offset
        Where the first block begins in the array that has the chunks.

    Returns
    -------
    tuple of int
        The sizes of the new blocks, which are as many elements together.
    """
    total = sum(sizes)
    ends = itertools.accumulate(int(size) for size in sizes)
    borders = {min(-(-(offset + end) // step) * step - offset, total) for end in ends}
    edges = [0, *sorted(borders - {0})]
    return tuple(stop - start for start, stop in itertools.pairwise(edges)) or sizes
