"""Reads into the memory of GPUs: new memory, or memory that the caller gives, or an array of zarr-python.

Given memory is described by DLPack or by the CUDA array interface. With ``zarr.config.enable_gpu()``
zarr-python reads into arrays of CuPy.
"""

from __future__ import annotations

import contextlib
import operator
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zarrs_cuda import _devices, _settings
from zarrs_cuda._errors import BackendUnavailable
from zarrs_cuda._interrupts import interruptible
from zarrs_cuda._native import native

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zarrs_cuda._internal import Native
    from zarrs_cuda._reader import ArrayReader

# What DLPack calls the memory of a CUDA device, and of the host.
_CUDA, _HOST = 2, 1

# The remedy where a GPU has failed that should read into an array of CuPy.
_FAILED = (
    "CuPy's work on this GPU may wait for ever, too: start a new process, or read into the memory of the "
    "host, without `zarr.config.enable_gpu()`"
)

# The handles of CUDA's own streams: the legacy default stream, and the default stream of the calling thread.
_LEGACY, _PER_THREAD = 1, 2


class Wanted(NamedTuple):
    """Boxes of one shape that begin at ``begins``."""

    begins: Sequence[Sequence[int]]
    shape: tuple[int, ...]
    # Whether an axis for the boxes is in front of the elements, or there is one box without it.
    many: bool
    # Whether a box leaves the array.
    leaves: bool


def read(reader: ArrayReader, wanted: Wanted, out: Any, device: Any, stream: Any) -> Any:
    """Read boxes into the memory of a GPU, if ``out`` or ``device`` is one.

    Returns
    -------
    DeviceTensor, object or None
        The elements: ``out``, if it was given. None if the elements go to the memory of the host.

    Raises
    ------
    ValueError
        If the elements cannot go there.
    TypeError
        If ``stream`` is no stream.
    BackendUnavailable
        If the GPU cannot be used.
    """
    number = None if device is None else _devices.number_of(device)
    is_given = not isinstance(out, np.ndarray) and (
        hasattr(out, "__dlpack__") or hasattr(out, "__cuda_array_interface__")
    )
    if not is_given:
        if stream is not None:
            msg = (
                "`stream` orders writes to an `out` that is memory of a GPU, and there is none: leave it out"
            )
            raise ValueError(msg)
        if number in (None, "cpu"):
            return None
    _check(reader, wanted, out if is_given else None)
    ours, dtype = reader._reader, reader._stored_type
    if is_given:
        target = _target(out, stream, number)
        _check_target(reader, wanted, target)

        def write() -> None:
            # The work holds the memory and the stream until it ends, also after Ctrl-C.
            ours.read_into_device(wanted.begins, wanted.shape, target.places(wanted))

        if target.stream == _PER_THREAD:
            # That stream is another one on another thread.
            write()
        else:
            interruptible(write)
        return out
    if out is not None:
        msg = "`device` asks for new memory of a GPU, and `out` is where the elements go: give one of them"
        raise ValueError(msg)
    to = (None if number == "cuda" else number), dtype
    if wanted.many:
        return interruptible(lambda: ours.read_boxes_device(wanted.begins, wanted.shape, *to))
    return interruptible(lambda: ours.read_device(wanted.begins[0], wanted.shape, *to))


def _check(reader: ArrayReader, wanted: Wanted, out: Any) -> None:
    """Check what a read into the memory of a GPU cannot do."""
    if reader.dtype != reader._stored_type:
        msg = (
            f"elements go to the memory of a GPU as they are, of the type {reader._stored_type}, and this "
            f"reader returns {reader.dtype}: make a reader without `dtype`, and convert them there"
        )
        raise ValueError(msg)
    if wanted.leaves:
        what = "leave out `device`" if out is None else "give an `out` of the host"
        msg = f"boxes that leave the array are read into the memory of the host alone: {what}"
        raise ValueError(msg)


def _check_target(reader: ArrayReader, wanted: Wanted, target: Target) -> None:
    shape = (len(wanted.begins), *wanted.shape) if wanted.many else wanted.shape
    if target.shape != shape or target.dtype != reader.dtype:
        msg = (
            f"`out` has the shape {target.shape} and the type {target.dtype}, and must have the shape "
            f"{shape} and the type {reader.dtype}"
        )
        raise ValueError(msg)


class Target(NamedTuple):
    """Memory of a GPU."""

    device: int
    pointer: int
    shape: tuple[int, ...]
    # In bytes.
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    stream: int
    # Keeps the memory and the stream.
    owner: Any

    def places(self, wanted: Wanted) -> tuple[int, int, int, int, list[int], int, Any]:
        """Return the places of the boxes, which the native module takes by position."""
        size, shape = self.dtype.itemsize, wanted.shape
        strides = self.strides[1:] if wanted.many else self.strides
        # Whatever the stride of an axis with one index is, no element is far away.
        strides = tuple(step if extent > 1 else size for step, extent in zip(strides, shape, strict=True))
        ends = sum(step * (extent - 1) for step, extent in zip(strides, shape, strict=True))
        length = 0 if 0 in shape else ends + size
        step = self.strides[0] if wanted.many and self.shape[0] > 1 else 0
        stream = 0 if self.stream == _LEGACY else self.stream
        return self.device, self.pointer, step, length, list(strides), stream, self.owner


def _target(out: Any, stream: Any, number: int | str | None) -> Target:
    """Return the memory of ``out``, after whose pending work ``stream`` comes.

    ``number`` is the GPU that was named.

    Raises
    ------
    ValueError
        If the memory is none of a GPU, cannot be written, or goes backwards.
    TypeError
        If ``stream`` is no stream.
    """
    handle = None if stream is None else handle_of(stream)
    found = (_of_dlpack if hasattr(out, "__dlpack__") else _of_interface)(out, handle, number)
    found = found._replace(owner=(found.owner, stream))
    if any(step < 0 and extent > 1 for step, extent in zip(found.strides, found.shape, strict=True)):
        msg = f"`out` has the strides {found.strides}, and memory that goes backwards is not written: copy it"
        raise ValueError(msg)
    return found


def handle_of(stream: Any) -> int:
    """Return the handle of a stream: of CuPy, of PyTorch, or a number. 0 is the legacy default stream.

    Raises
    ------
    TypeError
        If it is none.
    """
    given = getattr(stream, "ptr", getattr(stream, "cuda_stream", stream))
    handle = _settings.integer(given)
    if handle is None or not 0 <= handle < 2**64:
        msg = (
            f"`stream` is {stream!r}, and must be the handle of a CUDA stream, or an object that has it as "
            "`ptr` or `cuda_stream`"
        )
        raise TypeError(msg)
    return handle or _LEGACY


def _of_dlpack(out: Any, handle: int | None, named: int | str | None) -> Target:
    kind, number = map(int, out.__dlpack_device__())
    if kind != _CUDA:
        where = "of the host" if kind == _HOST else f"of a device that DLPack calls ({kind}, {number})"
        msg = (
            f"`out` is memory {where}, of the type {type(out).__name__}, and must be a numpy array or memory "
            "of a GPU"
        )
        raise ValueError(msg)
    if named not in (None, "cuda", number):
        msg = f"`out` is memory of GPU {number}, and `device` names {named!r}: leave out `device`"
        raise ValueError(msg)
    handle = _LEGACY if handle is None else handle
    if isinstance(out, native().DeviceTensor):
        msg = (
            "`out` is a DeviceTensor, whose elements are complete for every stream, and would not be: make "
            "an array of CuPy or PyTorch of it, and give that"
        )
        raise ValueError(msg)
    try:
        with current(out):
            capsule = _capsule_of(out, handle)
        number, pointer, shape, strides, letters, is_writable = native().memory_of_capsule(capsule)
    except BufferError as error:
        msg = (
            f"`out` is no memory of a GPU for elements: {error}. If it is memory of another GPU than the "
            "current one, make its GPU the current one"
        )
        raise ValueError(msg) from error
    # A tensor without a version does not say whether it may be written.
    if not is_writable and _is_read_only(out):
        msg = f"`out` is a {type(out).__name__}, which may only be read: give memory that can be written"
        raise ValueError(msg)
    dtype = np.dtype(letters)
    return Target(number, pointer, tuple(shape), tuple(strides), dtype, handle, (out, capsule))


def _capsule_of(out: Any, handle: int) -> Any:
    """Return the capsule of ``out``, after what its library has enqueued in its current stream."""
    for keywords in ({"max_version": (1, 0), "copy": False}, {"max_version": (1, 0)}):
        try:
            return out.__dlpack__(stream=handle, **keywords)
        except TypeError:
            # A library for an older DLPack.
            continue
    return out.__dlpack__(stream=handle)


def _is_read_only(out: Any) -> bool:
    told = getattr(out, "__cuda_array_interface__", None)
    return told is not None and bool(told["data"][1])


def _of_interface(out: Any, handle: int | None, named: int | str | None) -> Target:
    told = out.__cuda_array_interface__
    if not isinstance(named, int):
        msg = (
            f"a {type(out).__name__} does not say on which GPU it is, because it has no `__dlpack__`: name "
            "the GPU by its number, by `device`"
        )
        raise ValueError(msg)
    pointer, is_read_only = told["data"]
    if is_read_only or told.get("mask") is not None:
        msg = "`out` is memory that may only be read, or has a mask: give memory that can be written"
        raise ValueError(msg)
    dtype, shape = np.dtype(told["typestr"]), tuple(map(operator.index, told["shape"]))
    strides = told.get("strides")
    if strides is None:
        steps, step = [], dtype.itemsize
        for extent in reversed(shape):
            steps.append(step)
            step *= extent
        strides = steps[::-1]
    own = told.get("stream")
    if handle is not None and own not in (None, handle):
        msg = (
            f"`out` says that its memory is used in the stream {own}, and `stream` is {handle}: leave out "
            "`stream`, and let the other stream wait for that one"
        )
        raise ValueError(msg)
    handle = own or handle or _LEGACY
    return Target(named, pointer, shape, tuple(strides), dtype, handle, out)


def _module_of(values: Any, name: str, kind: str) -> Any:
    """Return the module ``name``, if ``values`` is an array of it, of the class ``kind``."""
    # Another thread may be importing it.
    array_type = getattr(sys.modules.get(name), kind, None)
    return sys.modules[name] if isinstance(array_type, type) and isinstance(values, array_type) else None


def cupy_of(values: Any) -> Any:
    """Return the module CuPy, if ``values`` is an array of it."""
    return _module_of(values, "cupy", "ndarray")


def current(out: Any) -> contextlib.AbstractContextManager[Any]:
    """Make the GPU of an array of CuPy or PyTorch the current one, whose stream their calls use."""
    if (cupy := cupy_of(out)) is not None:
        return cupy.cuda.Device(int(out.device.id))  # type: ignore[no-any-return]
    if (torch := _module_of(out, "torch", "Tensor")) is not None:
        return torch.cuda.device(out.device)  # type: ignore[no-any-return]
    return contextlib.nullcontext()


def stream_for_thread(cupy: Any, number: int) -> Any:
    """Return the stream of a GPU that is current on this thread, where another thread enqueues work."""
    stream = cupy.cuda.get_current_stream(number)
    if handle_of(stream) == _PER_THREAD:
        # Another thread has another one.
        with cupy.cuda.Device(number):
            stream.synchronize()
    return stream


def into_array(
    ours: Native, batch: list[Any], out: Any, devices: _devices.Devices
) -> Callable[[], bool] | None:
    """Return how a batch is read into ``out``, an array of CuPy, on another thread; None if the host decodes.

    Call this function on the thread whose current stream orders the use of ``out``. What it returns returns
    whether the batch was read, and then all elements are in ``out``. It raises BackendUnavailable if the GPU
    has failed: CuPy, too, would wait for it then.
    """
    if isinstance(out, np.ndarray) or not devices.asks():
        return None
    cupy = cupy_of(out)
    if cupy is None:
        return None
    number = int(out.device.id)
    spec = batch[0][1]
    dtype = spec.dtype.to_native_dtype()
    is_asked = not isinstance(devices.devices, tuple) or number in devices.devices
    is_ours = ours.is_sharded and not (ours.is_shared or ours.is_variable or ours.takes_values)
    is_plain = out.ndim > 0 and out.size > 0 and out.flags.c_contiguous
    # Where a chunk that is missing is an error, somebody has to know which one.
    tells_missing = not getattr(spec.config, "read_missing_chunks", True)
    if not (is_asked and is_ours and is_plain) or tells_missing or not dtype.isnative or out.dtype != dtype:
        return None
    stream = stream_for_thread(cupy, number)
    handle = handle_of(stream)
    # The call holds the array until it ends, also where its caller was cancelled.
    memory = number, out.data.ptr, out.shape, out.itemsize, 0 if handle == _LEGACY else handle, out

    def read_batch() -> bool:
        try:
            is_read, why = ours.read_into_device(batch, memory, _settings.threads())
        except BackendUnavailable as error:
            # The remedies of other reads are none here.
            raise BackendUnavailable(error.args[0], _FAILED) from error
        if is_read:
            # The user does not see the stream of this thread.
            with cupy.cuda.Device(number):
                stream.synchronize()
        elif why is not None and _devices.wants_cuda(devices):
            raise BackendUnavailable(why)
        return is_read

    return read_batch
