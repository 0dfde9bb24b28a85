"""Arrays, tensors and buffers: where their bytes are, for reading and for filling.

A leaf keeps its object, so the memory stays as long as the leaf. Nothing here imports
NumPy or torch: an object is known by what it can do.
"""

from __future__ import annotations

import ctypes
import math
import sys
from typing import Any, Callable, NamedTuple, NoReturn

from outlive import _tree
from outlive._types import Error

REMEDY = "keep arrays, buffers and plain values in the state; leave the named entry out"


ELEMENTS = {
    "float16": 1,
    "bfloat16": 2,
    "float32": 3,
    "float64": 4,
    "complex32": 1,
    "complex64": 3,
    "complex128": 4,
}
"""Of torch's and NumPy's types; of complex numbers their parts."""


class Spot(NamedTuple):
    """Bytes in memory, what keeps them there, and what to do after they were filled."""

    address: int
    bytes: int
    hold: Any
    finish: Callable[[], object] | None = None


def refuse(name: str, reason: str, remedy: str = REMEDY) -> NoReturn:
    """The value cannot be stored."""
    raise Error(109, f"region '{name}'", reason, remedy)


class Leaf:
    """One array, tensor or buffer."""

    kind = ""
    read_only = False
    dtype = ""
    shape: tuple[int, ...] = ()
    order = "C"
    nbytes = 0
    element = 0
    """What numbers it consists of, as ``outlive_describe`` has it; 0: no floating-point ones."""

    def node(self, name: str) -> _tree.Node:
        """Its entry in the tree."""
        return {"a": [name, self.kind, self.dtype, list(self.shape), self.order]}

    def direct(self) -> Spot | None:
        """Its own bytes, if they lie one after the other in the order of the node."""
        raise NotImplementedError

    def source(self) -> Spot:
        """Bytes to capture."""
        raise NotImplementedError

    def target(self, order: str) -> Spot:
        """Bytes to fill with a checkpoint in this order."""
        raise NotImplementedError


class ArrayLeaf(Leaf):
    """A NumPy array of any order and any strides."""

    kind = "array"

    def __init__(self, name: str, array: Any) -> None:
        dtype = array.dtype
        if dtype.hasobject:
            refuse(name, f"a NumPy array of Python objects ({dtype})")
        if hasattr(array, "mask") and hasattr(array, "filled"):
            refuse(name, "a masked array", "store its .data and its .mask under their own names")
        self.array = array
        self.dtype = dtype_text(dtype)
        self.shape = tuple(array.shape)
        self.nbytes = array.nbytes
        self.element = array_element(dtype)
        self.read_only = not array.flags.writeable
        self.order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"

    def is_direct(self, order: str) -> bool:
        flags = self.array.flags
        return bool(flags.c_contiguous if order == "C" else flags.f_contiguous)

    def direct(self) -> Spot | None:
        if not self.is_direct(self.order):
            return None
        return Spot(self.array.ctypes.data, self.nbytes, self.array)

    def source(self) -> Spot:
        spot = self.direct()
        if spot is None:
            dense = self.array.copy(order="C")
            spot = Spot(dense.ctypes.data, self.nbytes, dense)
        return spot

    def target(self, order: str) -> Spot:
        if self.is_direct(order):
            return Spot(self.array.ctypes.data, self.nbytes, self.array)
        array, dense = self.array, self.array.copy(order=order)
        return Spot(
            dense.ctypes.data, self.nbytes, dense, lambda: array.__setitem__(Ellipsis, dense)
        )


class TensorLeaf(Leaf):
    """A torch tensor on the CPU, or whatever behaves like one."""

    kind = "tensor"

    def __init__(self, name: str, tensor: Any) -> None:
        device = getattr(tensor, "device", "cpu")
        place = str(getattr(device, "type", device))
        if place != "cpu" or getattr(tensor, "is_cuda", False):
            refuse(
                name,
                f"a tensor on the device {device}",
                "keep a copy on the CPU in the state: tensor.cpu() before the checkpoint, "
                "tensor.copy_(...) after the restore",
            )
        for what in ("is_sparse", "is_quantized", "is_nested", "is_mkldnn"):
            if getattr(tensor, what, False):
                refuse(name, f"a tensor that is not dense ({what})", "store its parts")
        self.tensor = tensor
        self.dtype = str(tensor.dtype)
        self.element = ELEMENTS.get(self.dtype.rpartition(".")[2], 0)
        self.shape = tuple(int(n) for n in tensor.shape)
        self.nbytes = math.prod(self.shape) * int(tensor.element_size())

    def direct(self) -> Spot | None:
        tensor = self.tensor
        lazy = any(
            hasattr(tensor, name) and getattr(tensor, name)() for name in ("is_conj", "is_neg")
        )
        if lazy or not tensor.is_contiguous():
            return None
        return Spot(int(tensor.data_ptr()), self.nbytes, tensor)

    def dense(self) -> Any:
        """A contiguous copy."""
        found = self.tensor.detach() if hasattr(self.tensor, "detach") else self.tensor
        for resolve in ("resolve_conj", "resolve_neg", "contiguous"):
            if hasattr(found, resolve):
                found = getattr(found, resolve)()
        return found

    def source(self) -> Spot:
        spot = self.direct()
        if spot is None:
            dense = self.dense()
            spot = Spot(int(dense.data_ptr()), self.nbytes, dense)
        return spot

    def target(self, order: str) -> Spot:
        spot = self.direct()
        if spot is None:
            tensor, dense = self.tensor, self.dense()
            whole = tensor.detach() if hasattr(tensor, "detach") else tensor
            spot = Spot(
                int(dense.data_ptr()), self.nbytes, (tensor, dense), lambda: whole.copy_(dense)
            )
        return spot


class BufferLeaf(Leaf):
    """Anything with the buffer protocol: bytearray, array.array, memoryview, mmap."""

    kind = "buffer"

    def __init__(self, name: str, view: memoryview) -> None:
        if view.readonly:
            refuse(
                name, f"a read-only {type(view.obj).__name__}", "use a writable buffer, or bytes"
            )
        self.view = view
        self.dtype = view.format
        self.element = {"e": 1, "f": 3, "d": 4}.get(view.format, 0)
        self.shape = tuple(view.shape or ())
        self.nbytes = view.nbytes

    def direct(self) -> Spot | None:
        if self.nbytes == 0:
            return Spot(0, 0, self.view)
        hold = ctypes.c_char.from_buffer(self.view)  # no resizing while this lives
        return Spot(ctypes.addressof(hold), self.nbytes, hold)

    def source(self) -> Spot:
        spot = self.direct()
        assert spot is not None
        return spot

    def target(self, order: str) -> Spot:
        return self.source()


def array_element(dtype: Any) -> int:
    """What numbers an array of this NumPy dtype consists of."""
    return ELEMENTS.get(str(dtype.name), 0) if dtype.isnative else 0


def dtype_text(dtype: Any) -> str:
    """A NumPy dtype as text, byte order included."""
    if dtype.kind != "V":
        return str(dtype.str)
    return repr(dtype.descr) if dtype.names else str(dtype.name)


def leaf(name: str, value: Any) -> Leaf | None:
    """The leaf of a value; None if it is something else."""
    np = _tree.numpy()
    if np is not None and isinstance(value, np.ndarray):
        return ArrayLeaf(name, value)
    if callable(getattr(value, "data_ptr", None)) and hasattr(value, "element_size"):
        return TensorLeaf(name, value)
    return None


def foreign_leaf(name: str, value: Any) -> Leaf | None:
    """The leaf of a buffer, or of what shows NumPy its memory; None if it is neither."""
    try:
        view = memoryview(value)
    except (TypeError, BufferError):
        return shared_array(name, value)
    if view.c_contiguous:
        return BufferLeaf(name, view)
    try:
        import numpy as np
    except ImportError:
        refuse(name, "a buffer with gaps", "store a contiguous one")
    return ArrayLeaf(name, np.asarray(view))


def shared_array(name: str, value: Any) -> Leaf | None:
    """An object with ``numpy()`` or ``__array__`` that shares its memory."""
    np = _tree.numpy()
    if np is None:
        return None
    if callable(getattr(value, "numpy", None)):
        detached = value.detach() if hasattr(value, "detach") else value
        first, second = detached.numpy(), detached.numpy()
    elif hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        first, second = np.asarray(value), np.asarray(value)
    else:
        return None
    if not isinstance(first, np.ndarray) or first.dtype.hasobject:
        return None
    if first.size and not np.shares_memory(first, second):
        refuse(
            name,
            f"a {type(value).__name__} gives copies of its memory only",
            "store a NumPy array, and build the object from it",
        )
    return ArrayLeaf(name, first)


def make(node: _tree.Node) -> Leaf:
    """A leaf with memory of its own for what the checkpoint holds."""
    name, kind, dtype, shape, order = node["a"]
    try:
        if kind == "array":
            import ast

            import numpy as np

            described = ast.literal_eval(dtype) if dtype.startswith("[") else dtype
            return ArrayLeaf(name, np.empty(shape, np.dtype(described), order=order))
        if kind == "tensor":
            torch: Any = sys.modules["torch"]
            dtype = getattr(torch, dtype.rpartition(".")[2])
            return TensorLeaf(name, torch.empty(shape, dtype=dtype))
        if len(shape) == 1 and dtype == "B":
            return BufferLeaf(name, memoryview(bytearray(shape[0])))
    except (KeyError, AttributeError, TypeError, ValueError, ImportError):
        pass
    raise Error(
        104,
        f"region '{name}'",
        f"the state has no memory for it, and none of type {dtype} can be made",
        "allocate it in the state before the restore",
    )


def value_of(found: Leaf) -> Any:
    """The object of a leaf that was made."""
    if isinstance(found, ArrayLeaf):
        return found.array
    if isinstance(found, TensorLeaf):
        return found.tensor
    assert isinstance(found, BufferLeaf)
    return found.view.obj


def declared(name: str, value: Any) -> tuple[int, int, int, Any]:
    """For ``protect``: address, bytes, what numbers, and what keeps them there."""
    found = leaf(name, value) or foreign_leaf(name, value)
    if found is None:
        refuse(name, f"a {type(value).__name__} is no array, tensor or buffer")
    if found.read_only:
        refuse(name, "it is read-only", "protect a writable buffer")
    spot = found.direct()
    if spot is None:
        raise Error(
            100,
            f"region '{name}'",
            "its elements do not lie one after the other",
            "protect a contiguous copy, or pass it in a state",
        )
    return spot.address, spot.bytes, found.element, (spot.hold, found)
