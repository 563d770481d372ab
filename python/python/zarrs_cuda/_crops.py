"""Crops of arrays for training: in batches, shuffled shard by shard, and read ahead."""

from __future__ import annotations

import itertools
import math
import operator
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from zarrs_cuda._ahead import Ahead
from zarrs_cuda._memory import Memory
from zarrs_cuda._reader import ArrayReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    type Elements = np.ndarray[Any, Any]
    # The elements of each reader; with the numbers of the crops, if they are asked for.
    type Batch = Any


class Crops:
    """Batches of crops of an array, shuffled, and read ahead by threads: an iterable of one epoch.

    Crops are read in blocks of several batches, by one call of :meth:`ArrayReader.read_boxes` for each, which
    reads and decodes each subchunk once. A batch is a part of its block's memory: copy a batch that is kept.
    The order depends on ``seed``, the epoch, ``shards_in_flight`` and the shape of shards, and not on
    memory, processes and threads. An error of a read is raised where its batch would have been returned, and
    says which it was.

    It can be pickled, with its readers. Its threads start with the first batch of an iterator, in the process
    that asks for this batch, and end with the iterator.

    Parameters
    ----------
    reader
        The reader of the array. Several readers, in a sequence, read the same boxes, each from its own array,
        such as images and their labels: then a batch is a tuple of arrays.
    origins
        The first element of each crop: integers of the shape ``(crops, axes)``. A number instead of them
        stands for so many crops anywhere in the array, at other places in each epoch.
    shape
        The shape of a crop.
    batch_size
        How many crops a batch has: the extent of its first axis. None for single crops, without that axis.
    shuffle
        Whether the order is random, and another one in each epoch. Otherwise it is that of ``origins``.
    seed
        The start of all random numbers: of the order, and of the places of a number of crops.
    shards_in_flight
        How many shards the crops are of, at most, that follow each other at random. The shards come in
        random order, each with all crops whose centre it has. Chunks are shards of an array without shards.
    prefetch
        How many blocks are read ahead, each by a thread.
    memory
        How many bytes all blocks have, at most, unless ``prefetch + 1`` batches have more. If the crops of
        ``shards_in_flight`` shards do not fit into one block, subchunks are decoded for several blocks.
    rank, world_size
        The part of the crops that this process has, counted from 0, and the number of parts. Each part has
        as many crops as the others: some crops are in two parts if they cannot be divided.
    drop_last
        Whether the last batch is left out if it is not full, as are the last crops that cannot be divided
        among the ranks.
    with_numbers
        Whether a batch is a tuple that ends with the numbers of its crops in ``origins``. They say which
        labels the crops have.

    Raises
    ------
    TypeError
        If ``reader`` is no :class:`ArrayReader`, or a count no integer.
    ValueError
        If a crop is not in the array, and its reader does not fill what is outside, or an argument is out of
        its range.
    """

    def __init__(
        self,
        reader: ArrayReader | Sequence[ArrayReader],
        origins: Sequence[Sequence[int]] | Elements | int,
        shape: Sequence[int],
        *,
        batch_size: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        shards_in_flight: int = 4,
        prefetch: int = 2,
        memory: int = 512 << 20,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
        with_numbers: bool = False,
    ) -> None:
        several = isinstance(reader, Sequence)
        self._readers: tuple[ArrayReader, ...] = tuple(reader) if isinstance(reader, Sequence) else (reader,)
        for each in self._readers:
            if not isinstance(each, ArrayReader):
                msg = f"crops are read by an `ArrayReader` of the array, and this is a {type(each).__name__}"
                raise TypeError(msg)
        if not self._readers:
            msg = "crops are read by an `ArrayReader`, and the sequence of readers is empty"
            raise ValueError(msg)
        self._is_tuple = several or with_numbers
        self._with_numbers = bool(with_numbers)
        self._shape = tuple(_count("an extent of `shape`", extent, 0) for extent in shape)
        self._origins: Elements | None = None
        if np.ndim(origins) == 0:
            self._crops = _count("the number of crops", origins, 0)
            extents = self._readers[0].shape
            if len(self._shape) != len(extents) or any(map(operator.gt, self._shape, extents)):
                msg = (
                    f"no crop of the shape {self._shape} is in an array of the shape {extents}: give a "
                    "smaller shape, or origins and a reader with `fill=True`"
                )
                raise ValueError(msg)
            last = np.subtract(extents, self._shape, dtype=np.int64)[np.newaxis]
        else:
            last = self._origins = np.array(origins)
            self._crops = len(last)
        for each in self._readers:
            each._places(last, self._shape)
        self._batch = 1 if batch_size is None else _count("`batch_size`", batch_size, 1)
        self._is_single = batch_size is None
        self._shuffle, self._drop_last = bool(shuffle), bool(drop_last)
        self._seed = _count("`seed`", seed, 0)
        self._in_flight = _count("`shards_in_flight`", shards_in_flight, 1)
        self._prefetch = _count("`prefetch`", prefetch, 1)
        if (rank is None) != (world_size is None):
            msg = f"`rank` is {rank} and `world_size` is {world_size}: give both of them, or none"
            raise ValueError(msg)
        if rank is None:
            rank, world_size = self._ranks()
        self._rank, self._world = _count("`rank`", rank, 0), _count("`world_size`", world_size, 1)
        if self._rank >= self._world:
            msg = f"`rank` is {rank}, and must be less than `world_size`, {world_size}: ranks count from 0"
            raise ValueError(msg)
        # The most crops of a block: whole batches.
        crop = math.prod(self._shape) * sum(each._bytes_of_element for each in self._readers)
        fit = _count("`memory`", memory, 0) // (self._prefetch + 1) // max(crop, 1)
        self._block = max(fit // self._batch, 1) * self._batch
        self._memory = Memory(self._prefetch + 1, min(self._block, self._share) * crop)
        self._done = self._skipped = 0
        # One number, which a subclass may share with other processes.
        self._epoch: Any = [0]

    def _ranks(self) -> tuple[int, int]:
        """Return the rank of this process and the size of its world, which were not given."""
        return 0, 1

    @property
    def epoch(self) -> int:
        """The epoch that the next iterator is of."""
        return int(self._epoch[0])

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iterator, which gives the order. It is 0 until this is called."""
        epoch = _count("the epoch", epoch, 0)
        if epoch != self.epoch:
            # A state that was loaded is of another epoch.
            self._skipped = 0
        self._epoch[0] = epoch

    def __len__(self) -> int:
        """Return how many batches, or single crops, an epoch has on this rank."""
        share = self._share
        return share // self._batch if self._drop_last else -(-share // self._batch)

    def __iter__(self) -> Iterator[Batch]:
        """Return an iterator of the epoch that was set."""
        return self._iterated(0, 1)

    def state_dict(self) -> dict[str, Any]:
        """Return where the last iterator is, with which :meth:`load_state_dict` goes on there."""
        return {"epoch": self.epoch, "done": self._done, "of": self._settings}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iterator go on where another one was.

        Raises
        ------
        ValueError
            If that one's crops were others: they, the batches or the seed differ.
        """
        if state["of"] != self._settings:
            msg = f"the state is of crops of {state['of']}, and these are of {self._settings}"
            raise ValueError(msg)
        self.set_epoch(state["epoch"])
        self._skipped = state["done"]

    @property
    def _settings(self) -> dict[str, Any]:
        """The arguments that make the order of this rank."""
        places = None if self._origins is None else zlib.crc32(self._origins.tobytes())
        return {
            "crops": (self._crops, places),
            "shape": self._shape,
            "batch_size": self._batch,
            "shuffle": self._shuffle,
            "seed": self._seed,
            "shards_in_flight": self._in_flight,
            "rank": self._rank,
            "world_size": self._world,
            "drop_last": self._drop_last,
        }

    @property
    def _share(self) -> int:
        """How many crops each rank has."""
        return self._crops // self._world if self._drop_last else -(-self._crops // self._world)

    def _iterated(self, part: int, parts: int) -> Iterator[Batch]:
        """Return an iterator of one of several parts of the batches, those of a worker."""
        self._done, self._skipped = self._skipped, 0
        batches = range(len(self) * part // parts + self._done, len(self) * (part + 1) // parts)
        return self._batches(batches, self.epoch)

    def _batches(self, batches: range, epoch: int) -> Iterator[Batch]:
        if not batches:
            return
        origins, order, ends = self._ordered(epoch)

        def numbers(some: range) -> Elements:
            return order[some.start * self._batch : some.stop * self._batch]

        def read(some: range) -> list[Elements]:
            places = origins[numbers(some)]
            found = self._memory.parts([((len(places), *self._shape), each.dtype) for each in self._readers])
            for each, out in zip(self._readers, found, strict=True):
                each.read_boxes(places, self._shape, out)
            return found

        with Ahead(read, self._blocks(batches, ends), self._prefetch) as ahead:
            while (task := ahead.take()) is not None:
                block, found = task
                error = found.exception()
                for at, number in enumerate(block):
                    crops = numbers(range(number, number + 1))
                    if error is None:
                        first = at * self._batch
                        parts = [elements[first : first + len(crops)] for elements in found.result()]
                    else:
                        # Other batches of the block may be whole.
                        parts = self._alone(read, block, number, error, crops)
                    self._done += 1
                    yield self._given([*parts, crops.copy()] if self._with_numbers else parts)
                    # The loop has let the block before this one go.
                    del parts
                    ahead.more()
                del task, found

    def _alone(
        self, read: Any, block: range, number: int, error: BaseException, crops: Elements
    ) -> list[Elements]:
        """Read a batch of a block that could not be read as a whole, because of this batch or of another."""
        try:
            if len(block) == 1:
                raise error
            found: list[Elements] = read(range(number, number + 1))
        except BaseException as error:
            error.add_note(f"It was to be batch {number}, the crops {crops.tolist()} (counted from 0)")
            raise
        return found

    def _given(self, parts: list[Elements]) -> Batch:
        if self._is_single:
            parts = [part[0] for part in parts]
        return tuple(parts) if self._is_tuple else parts[0]

    def _blocks(self, batches: range, ends: Elements) -> Iterator[range]:
        """Return the batches of each block: whole groups of shards, or a part of one that is too large."""
        most = self._block // self._batch
        start = stop = batches.start
        for end in ends:
            last = min(-(-int(end) // self._batch), batches.stop)
            if last - start > most:
                if stop > start:
                    yield range(start, stop)
                    start = stop
                count = -(-(last - start) // most)
                if count > 1:
                    parts = [start + (last - start) * at // count for at in range(count + 1)]
                    yield from itertools.starmap(range, itertools.pairwise(parts))
                    start = last
            stop = max(start, last)
        if stop > start:
            yield range(start, stop)

    def _ordered(self, epoch: int) -> tuple[Elements, Elements, Elements]:
        """Return the origins of all crops, the crops of this rank in order, and where its groups end."""
        rng = np.random.default_rng((self._seed, epoch))
        origins = self._origins
        if origins is None:
            most = np.subtract(self._readers[0].shape, self._shape)
            origins = rng.integers(0, most, (self._crops, len(most)), np.int64, endpoint=True)
        if self._shuffle:
            order, sizes = self._shuffled(origins, rng)
        else:
            order, sizes = np.arange(self._crops), np.array([self._crops])
        share = self._share
        # Repeated from the start, if it has too few.
        order = np.resize(order, share * self._world)
        ends = np.append(np.cumsum(sizes), len(order))
        mine = order[self._rank * share : (self._rank + 1) * share]
        return origins, mine, np.clip(ends - self._rank * share, 0, share)

    def _shuffled(self, origins: Elements, rng: np.random.Generator) -> tuple[Elements, Elements]:
        """Return the crops in random order, by groups of whole shards, and how many crops each group has."""
        centres = origins.astype(np.int64) + np.array(self._shape, np.int64) // 2
        places = centres // np.array(self._readers[0]._shard, np.int64)
        by_shard = np.lexsort(places.T)
        differs = (np.diff(places[by_shard], axis=0) != 0).any(axis=1)
        shard = np.empty(len(origins), np.int64)
        shard[by_shard] = np.append(0, np.cumsum(differs))
        shards = int(shard.max()) + 1
        groups = -(-shards // self._in_flight)
        group = (rng.permutation(shards) * groups // shards)[shard]
        return np.lexsort((rng.random(len(origins)), group)), np.bincount(group, minlength=groups)


def _count(what: str, given: Any, least: int) -> int:
    """Return a count, after a check.

    Raises
    ------
    TypeError
        If it is no integer.
    ValueError
        If it is less than ``least``.
    """
    try:
        count = operator.index(given)
    except TypeError:
        msg = f"{what} is {given!r}, and must be an integer"
        raise TypeError(msg) from None
    if count < least:
        msg = f"{what} is {count}, and must be at least {least}"
        raise ValueError(msg)
    return count
