"""A stand-in for CuPy, over the CUDA driver that is loaded: what zarr-python and the tests use of it.

As in CuPy, the device and the stream that a thread uses now belong to the thread. Work of an array is
enqueued in the current stream of the current device, whatever the device of the array is, and copies to
the host wait for it. ``NOTES`` has the name, the thread, the
stream and the device of each call of the driver.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

if TYPE_CHECKING:
    from collections.abc import Iterator

_DRIVER = ctypes.CDLL("libcuda.so.1")
_NON_BLOCKING = 1


class Note(NamedTuple):
    name: str
    thread: int
    stream: int | None
    device: int


NOTES: list[Note] = []


# The stream of threads that have chosen none: 2 with CUPY_CUDA_PER_THREAD_DEFAULT_STREAM=1.
DEFAULT = 0


# Whether new memory is still in use by work in the current stream, as memory of CuPy's pool may be.
IS_BUSY = False


class _Thread(threading.local):
    device = 0
    streams: Any = None


_thread = _Thread()
_contexts: dict[int, ctypes.c_void_p] = {}
_is_initialised = False


def _check(name: str, *arguments: Any) -> None:
    code = getattr(_DRIVER, name)(*arguments)
    if code:
        msg = f"{name} returned {code}"
        raise RuntimeError(msg)


@contextlib.contextmanager
def _context(device: int) -> Iterator[None]:
    global _is_initialised
    if not _is_initialised:
        _check("cuInit", 0)
        _is_initialised = True
    if device not in _contexts:
        context = ctypes.c_void_p()
        _check("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        _contexts[device] = context
    _check("cuCtxPushCurrent_v2", _contexts[device])
    try:
        yield
    finally:
        _check("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


def _call(name: str, *arguments: Any, device: int, stream: int | None = None) -> None:
    NOTES.append(Note(name, threading.get_ident(), stream, device))
    with _context(device):
        _check(name, *arguments)


class Stream:
    """A stream of the device that was current when it was made."""

    def __init__(self, *, non_blocking: bool = True, ptr: int | None = None) -> None:
        assert non_blocking
        self.device_id, self.ptr = _thread.device, ptr or 0
        if ptr is None:
            made = ctypes.c_void_p()
            _call("cuStreamCreate", ctypes.byref(made), _NON_BLOCKING, device=self.device_id)
            self.ptr = made.value or 0

    def __enter__(self) -> Stream:
        _thread.streams = [*(_thread.streams or []), self]
        return self

    def __exit__(self, *_: object) -> None:
        _thread.streams = _thread.streams[:-1]

    def synchronize(self) -> None:
        _call(
            "cuStreamSynchronize",
            ctypes.c_void_p(self.ptr),
            device=self.device_id if self.ptr > 2 else _thread.device,
            stream=self.ptr,
        )

    def let_wait(self, other: int) -> None:
        """Let another stream wait for what is enqueued in this one now."""
        event = ctypes.c_void_p()
        own = ctypes.c_void_p(self.ptr)
        # Without times.
        _call("cuEventCreate", ctypes.byref(event), 2, device=self.device_id)
        _call("cuEventRecord", event, own, device=self.device_id, stream=self.ptr)
        _call("cuStreamWaitEvent", ctypes.c_void_p(other), event, 0, device=self.device_id, stream=other)
        _call("cuEventDestroy_v2", event, device=self.device_id)

    def is_done(self) -> bool:
        NOTES.append(Note("cuStreamQuery", threading.get_ident(), self.ptr, self.device_id))
        with _context(self.device_id):
            return not _DRIVER.cuStreamQuery(ctypes.c_void_p(self.ptr))


class Device:
    """A device, which is current in a ``with``."""

    def __init__(self, device: int | None = None) -> None:
        self.id = _thread.device if device is None else device

    def __enter__(self) -> Device:
        self._before, _thread.device = _thread.device, self.id
        return self

    def __exit__(self, *_: object) -> None:
        _thread.device = self._before

    def synchronize(self) -> None:
        _call("cuCtxSynchronize", device=self.id)


def get_current_stream(device_id: int | None = None) -> Stream:
    device = _thread.device if device_id is None else device_id
    found = [stream for stream in _thread.streams or [] if stream.device_id == device]
    with Device(device):
        return found[-1] if found else Stream(ptr=DEFAULT)


def free_memory(device: int) -> int:
    """Return the number of bytes of the device that are not allocated."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    with _context(device):
        _check("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value


class cuda:  # noqa: N801
    """The module of this name."""

    Stream, Device = Stream, Device
    get_current_stream = staticmethod(get_current_stream)

    @staticmethod
    def alloc_pinned_memory(size: int) -> PinnedMemory:
        return PinnedMemory(size)


class _Memory:
    """Memory of a device."""

    def __init__(self, size: int, device: int) -> None:
        self.device, self.size = device, max(size, 1)
        made = ctypes.c_uint64()
        _call("cuMemAlloc_v2", ctypes.byref(made), ctypes.c_size_t(self.size), device=device)
        self.pointer = made.value

    def __del__(self) -> None:
        # CuPy keeps the memory in a pool. What is enqueued may still use it.
        with contextlib.suppress(Exception):
            with _context(self.device):
                _check("cuCtxSynchronize")
            _call("cuMemFree_v2", ctypes.c_uint64(self.pointer), device=self.device)


@contextlib.contextmanager
def _pinned(size: int, device: int) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
    """Give memory of the host that devices can use, and its bytes."""
    made = ctypes.c_void_p()
    _call("cuMemHostAlloc", ctypes.byref(made), ctypes.c_size_t(max(size, 1)), 0, device=device)
    address = made.value or 0
    try:
        yield address, np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
    finally:
        _call("cuMemFreeHost", made, device=device)


# The sizes of the pinned memory that lives, by its addresses.
PINNED: dict[int, int] = {}


class PinnedMemory:
    """Memory of the host that devices can use. CuPy keeps it in a pool, and gives it to others."""

    def __init__(self, size: int) -> None:
        assert size > 0
        self.size, self._device = size, _thread.device
        made = ctypes.c_void_p()
        _call("cuMemHostAlloc", ctypes.byref(made), ctypes.c_size_t(size), 0, device=self._device)
        self.ptr = made.value or 0
        PINNED[self.ptr] = size

    def __buffer__(self, _flags: int) -> memoryview:
        # The memory of an array keeps this object.
        values = (ctypes.c_uint8 * self.size).from_address(self.ptr)
        values.owner = self
        return memoryview(values)

    def __del__(self) -> None:
        if hasattr(self, "ptr"):
            del PINNED[self.ptr]
            _call("cuMemFreeHost", ctypes.c_void_p(self.ptr), device=self._device)


class _Data:
    """The memory of an array, from its first element on."""

    def __init__(self, array: ndarray) -> None:
        self.ptr, self._array = array.pointer, array

    def copy_to_host_async(self, address: int, size: int, stream: Stream) -> None:
        array = self._array
        assert array.flags.c_contiguous
        assert size == array.nbytes
        assert any(at <= address and address + size <= at + PINNED[at] for at in PINNED), "not pinned"
        array._copy_down(address, size, stream)


class ndarray:  # noqa: N801
    """Elements in the memory of a device. ``owner`` keeps the memory."""

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        *,
        strides: tuple[int, ...] | None = None,
        pointer: int | None = None,
        owner: Any = None,
        device: int | None = None,
        order: str = "C",
    ) -> None:
        self.shape, self.dtype = tuple(map(int, shape)), np.dtype(dtype)
        if strides is None:
            axes = list(range(len(self.shape)))
            made, step = [0] * len(axes), self.dtype.itemsize
            for axis in reversed(axes) if order == "C" else axes:
                made[axis] = step
                step *= max(self.shape[axis], 1)
            strides = tuple(made)
        self.strides = strides
        self.device = Device(device)
        if pointer is None:
            owner = _Memory(self.nbytes, self.device.id)
            pointer = owner.pointer
        self.pointer, self._owner = pointer, owner

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=int))

    @property
    def itemsize(self) -> int:
        return int(self.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def data(self) -> Any:
        return _Data(self)

    @property
    def flags(self) -> Any:
        plain = ndarray(self.shape, self.dtype, pointer=0)
        return SimpleNamespace(c_contiguous=self.strides == plain.strides)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device.id

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        assert not copy
        assert dl_device in (None, self.__dlpack_device__())
        assert stream != 0
        own = get_current_stream()
        if stream not in (None, -1) and (stream or 0) != (own.ptr or 1):
            own.let_wait(stream or 0)
        return _capsule(self, is_versioned=max_version is not None and max_version[0] >= 1)

    def _span(self) -> int:
        steps = zip(self.strides, self.shape, strict=True)
        return sum(step * (extent - 1) for step, extent in steps) + self.itemsize if self.size else 0

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer if self.size else 0, False),
            "strides": self.strides,
            # The stream that is current now, and 1 for the default stream.
            "stream": get_current_stream().ptr or 1,
        }

    def __getitem__(self, key: Any) -> ndarray:
        # What the selection is of a host's array with these strides; its memory is not touched.
        like = as_strided(np.empty(0, self.dtype), self.shape, self.strides)
        first = like.__array_interface__["data"][0]
        key = key if isinstance(key, tuple) else (key,)
        # With an ellipsis single elements are arrays without axes, as in CuPy.
        view = like[key if Ellipsis in key else (*key, Ellipsis)]
        at = self.pointer + view.__array_interface__["data"][0] - first
        return ndarray(
            view.shape, self.dtype, strides=view.strides, pointer=at, owner=self, device=self.device.id
        )

    def __setitem__(self, key: Any, value: Any) -> None:
        part = self if key is Ellipsis else self[key]
        elements = asnumpy(value) if isinstance(value, ndarray) else np.asarray(value)
        part._put(elements)

    def _put(self, elements: np.ndarray[Any, Any]) -> None:
        """Set all elements, by way of the bytes between the first and the last."""
        span, stream = self._span(), get_current_stream()
        if not span:
            return
        with _pinned(span, self.device.id) as (address, memory):
            self._down(address, span, stream)
            view = np.ndarray(self.shape, self.dtype, memory, 0, self.strides)
            view[...] = elements
            _call(
                "cuMemcpyHtoDAsync_v2",
                ctypes.c_uint64(self.pointer),
                ctypes.c_void_p(address),
                ctypes.c_size_t(span),
                ctypes.c_void_p(stream.ptr),
                device=self.device.id,
                stream=stream.ptr,
            )
            with Device(self.device.id):
                stream.synchronize()

    def _down(self, address: int, span: int, stream: Stream) -> None:
        self._copy_down(address, span, stream)
        with Device(self.device.id):
            stream.synchronize()

    def _copy_down(self, address: int, span: int, stream: Stream) -> None:
        _call(
            "cuMemcpyDtoHAsync_v2",
            ctypes.c_void_p(address),
            ctypes.c_uint64(self.pointer),
            ctypes.c_size_t(span),
            ctypes.c_void_p(stream.ptr),
            device=self.device.id,
            stream=stream.ptr,
        )

    def get(self) -> np.ndarray[Any, Any]:
        """Return a copy on the host, of the elements behind the work of the current stream."""
        span, stream = self._span(), get_current_stream()
        if not span:
            return np.empty(self.shape, self.dtype)
        with _pinned(span, self.device.id) as (address, memory):
            self._down(address, span, stream)
            return np.ndarray(self.shape, self.dtype, memory, 0, self.strides).copy()

    def fill(self, value: Any) -> None:
        self[...] = value

    def zero_later(self) -> None:
        """Set all bytes to 0 in the current stream, and do not wait for it."""
        stream = get_current_stream()
        _call(
            "cuMemsetD8Async",
            ctypes.c_uint64(self.pointer),
            ctypes.c_ubyte(0),
            ctypes.c_size_t(self._span()),
            ctypes.c_void_p(stream.ptr),
            device=self.device.id,
            stream=stream.ptr,
        )


def empty(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    made = ndarray((shape,) if isinstance(shape, int) else tuple(shape), dtype, order=order)
    if IS_BUSY and made.size:
        made.zero_later()
    return made


def asarray(values: Any, dtype: Any = None) -> ndarray:
    if isinstance(values, ndarray):
        return values
    if hasattr(values, "__cuda_array_interface__"):
        return _of_interface(values)
    values = np.asarray(values, dtype)
    made = empty(values.shape, values.dtype)
    made[...] = values
    return made


array = asanyarray = asarray


def _of_interface(values: Any) -> ndarray:
    told = values.__cuda_array_interface__
    assert told["version"] == 3
    assert told["strides"] is None
    pointer, is_read_only = told["data"]
    assert not is_read_only
    dtype = np.dtype(told["typestr"])
    if not pointer:
        return empty(told["shape"], dtype)
    assert told["stream"] is None, "nothing has to be waited for"
    # CuPy asks the driver for the device.
    return ndarray(
        told["shape"], dtype, pointer=pointer, owner=values, device=int(values.device.partition(":")[2])
    )


def frombuffer(values: Any, dtype: Any) -> ndarray:
    return asarray(np.frombuffer(values, dtype))


def asnumpy(values: Any) -> np.ndarray[Any, Any]:
    return values.get() if isinstance(values, ndarray) else np.asarray(values)


def ascontiguousarray(values: ndarray) -> ndarray:
    """Return the elements in C order, with one axis at least."""
    if not values.flags.c_contiguous:
        made = empty(values.shape, values.dtype)
        made[...] = values
        return made
    shape = values.shape or (1,)
    return ndarray(shape, values.dtype, pointer=values.pointer, owner=values, device=values.device.id)


def concatenate(values: Any) -> ndarray:
    return asarray(np.concatenate([asnumpy(value) for value in values]))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_KINDS = {b"dltensor": _Managed, b"dltensor_versioned": _Versioned}
_USED = {name: ctypes.create_string_buffer(b"used_" + name) for name in _KINDS}
_CODES = "iuf??cb"

_valid = ctypes.pythonapi.PyCapsule_IsValid
_valid.argtypes = (ctypes.py_object, ctypes.c_char_p)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.argtypes = (ctypes.py_object, ctypes.c_void_p)


class Taken:
    """A tensor that was taken out of a capsule, which ``delete`` gives back."""

    def __init__(self, capsule: Any) -> None:
        (name,) = (name for name in _KINDS if _valid(capsule, name))
        self.kind, self.address = _KINDS[name], _pointer(capsule, name)
        self.managed = self.kind.from_address(self.address)
        self.deleter = self.managed.deleter
        assert not _rename(capsule, ctypes.addressof(_USED[name]))

    def delete(self) -> None:
        """Call the deleter on this thread, without the GIL, once."""
        deleter, self.deleter = self.deleter, None
        if deleter is not None:
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter)(self.address)

    __del__ = delete

    def array(self) -> ndarray:
        tensor = self.managed.tensor
        assert tensor.device_type == 2
        assert tensor.lanes == 1
        dtype = np.dtype(f"{_CODES[tensor.code]}{tensor.bits // 8}")
        return ndarray(
            tuple(tensor.shape[: tensor.ndim]),
            dtype,
            strides=tuple(step * dtype.itemsize for step in tensor.strides[: tensor.ndim]),
            pointer=(tensor.data or 0) + tensor.byte_offset,
            owner=self,
            device=tensor.device_id,
        )


def from_dlpack(tensor: Any, max_version: tuple[int, int] | None = (1, 0)) -> ndarray:
    kind, number = tensor.__dlpack_device__()
    assert kind == 2
    with Device(number):
        stream = get_current_stream(number).ptr or 1
        versions = {} if max_version is None else {"max_version": max_version}
        return Taken(tensor.__dlpack__(stream=stream, **versions)).array()


_new = ctypes.pythonapi.PyCapsule_New
_new.argtypes, _new.restype = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p), ctypes.py_object

# What was exported, by the address of its structure, until its deleter is called.
EXPORTED: dict[int, Any] = {}
FLAGS = 0


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _delete_exported(address: int) -> None:
    EXPORTED.pop(address, None)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _free_unused(capsule: int) -> None:
    # The capsule is going away: its address is used, and no new reference is made.
    for name in _KINDS:
        if _is_valid(capsule, name):
            EXPORTED.pop(_pointer_of(capsule, name), None)


_raw = ctypes.PyDLL(None)
_is_valid = _raw.PyCapsule_IsValid
_is_valid.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
_pointer_of = _raw.PyCapsule_GetPointer
_pointer_of.argtypes, _pointer_of.restype = (ctypes.c_void_p, ctypes.c_char_p), ctypes.c_void_p


def _capsule(values: ndarray, *, is_versioned: bool) -> Any:
    axes = values.ndim
    shape = (ctypes.c_int64 * axes)(*values.shape)
    strides = (ctypes.c_int64 * axes)(*(step // values.itemsize for step in values.strides))
    code = _CODES.index(values.dtype.kind)
    tensor = _Tensor(
        values.pointer, 2, values.device.id, axes, code, 8 * values.itemsize, 1, shape, strides, 0
    )
    deleter = ctypes.cast(_delete_exported, ctypes.c_void_p)
    made: Any
    if is_versioned:
        name, made = b"dltensor_versioned", _Versioned(1, 0, None, deleter, FLAGS, tensor)
    else:
        name, made = b"dltensor", _Managed(tensor, None, deleter)
    address = ctypes.addressof(made)
    named = ctypes.create_string_buffer(name)
    EXPORTED[address] = made, values, shape, strides, named
    _NAMES.append(named)
    return _new(address, ctypes.cast(named, ctypes.c_char_p), ctypes.cast(_free_unused, ctypes.c_void_p))


_NAMES: list[Any] = []
