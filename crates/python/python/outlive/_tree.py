"""Plain values as JSON, exactly: the encoding of the region ``~tree``.

None, bool and str stand for themselves; everything else is an object with one key
that is its tag, so nothing is guessed when it is read and nothing is executed:

====== ======================================================================
``i``  int, hexadecimal text, of any size
``f``  float, its eight bytes (little-endian, hexadecimal): NaNs keep their bits
``c``  complex, its two floats
``b``  bytes, base64
``n``  NumPy scalar: dtype and bytes
``l``  list, ``t`` tuple: the items
``d``  dict: pairs of key (str, or int as above) and value
``a``  array, tensor or buffer: region name, kind, dtype, shape, order
``o``  object with ``state_dict``: what that gives
====== ======================================================================
"""

from __future__ import annotations

import base64
import json
import struct
import sys
from typing import Any, Union

FORMAT = 1
NODES_DEPTH_MAX = 64
"""Deepest nesting; a state that contains itself ends here."""

Key = Union[str, int]
Node = Any


class Unplain(Exception):
    """The value is no plain value."""


def numpy() -> Any:
    """NumPy if the program has imported it, else None."""
    return sys.modules.get("numpy")


def encode_float(value: float) -> str:
    return struct.pack("<d", value).hex()


def decode_float(text: str) -> float:
    value: float = struct.unpack("<d", bytes.fromhex(text))[0]
    return value


def is_numpy_scalar(value: Any) -> bool:
    np = numpy()
    return np is not None and isinstance(value, np.generic)


def encode_plain(value: Any) -> Node:
    """The node of a plain value that contains no other; raises Unplain."""
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return {"i": hex(value)}
    if kind is float:
        return {"f": encode_float(value)}
    if kind is complex:
        return {"c": [encode_float(value.real), encode_float(value.imag)]}
    if kind is bytes:
        return {"b": base64.b64encode(value).decode("ascii")}
    if is_numpy_scalar(value) and not value.dtype.hasobject and value.dtype.kind != "V":
        return {"n": [value.dtype.str, base64.b64encode(value.tobytes()).decode("ascii")]}
    raise Unplain


def is_leaf(node: Node) -> bool:
    """True for an array, a tensor or a buffer."""
    return isinstance(node, dict) and "a" in node


def is_object(node: Node) -> bool:
    """True for an object with ``state_dict``."""
    return isinstance(node, dict) and "o" in node


def items(node: Node) -> list[Node]:
    """What a node contains."""
    if isinstance(node, dict):
        if "l" in node or "t" in node:
            found: list[Node] = node["l"] if "l" in node else node["t"]
            return found
        if "d" in node:
            return [value for _, value in node["d"]]
    return []


def is_plain(node: Node) -> bool:
    """True if there is no array and no object in it."""
    return not is_leaf(node) and not is_object(node) and all(map(is_plain, items(node)))


def encode_key(key: Key) -> Node:
    return key if isinstance(key, str) else {"i": hex(key)}


def decode_key(node: Node) -> Key:
    return node if isinstance(node, str) else int(node["i"], 16)


def pairs(node: Node) -> dict[Key, Node]:
    """The entries of a dict's node."""
    return {decode_key(key): value for key, value in node["d"]}


def decode(node: Node) -> Any:
    """The value of a plain node, made anew."""
    if not isinstance(node, dict):
        return node
    ((tag, content),) = node.items()
    if tag == "i":
        return int(content, 16)
    if tag == "f":
        return decode_float(content)
    if tag == "c":
        return complex(decode_float(content[0]), decode_float(content[1]))
    if tag == "b":
        return base64.b64decode(content, validate=True)
    if tag == "n":
        import numpy as np

        return np.frombuffer(base64.b64decode(content[1], validate=True), content[0])[0]
    if tag == "l":
        return [decode(item) for item in content]
    if tag == "t":
        return tuple(decode(item) for item in content)
    if tag == "d":
        return {key: decode(value) for key, value in pairs(node).items()}
    raise ValueError(f"unknown tag {tag!r}")


def kind_of(node: Node) -> str:
    """What a node is, in a word or two."""
    if not isinstance(node, dict):
        return type(node).__name__ if node is not None else "None"
    ((tag, content),) = node.items()
    if tag == "a":
        return {"array": "a NumPy array", "tensor": "a tensor"}.get(content[1], "a buffer")
    return {
        **{"i": "an int", "f": "a float", "c": "a complex", "b": "bytes"},
        **{"n": "a NumPy scalar", "l": "a list", "t": "a tuple", "d": "a dict"},
        **{"o": "an object with state_dict"},
    }[tag]


def dumps(node: Node) -> bytes:
    """The whole tree as bytes."""
    tree = {"outlive": FORMAT, "state": node}
    return json.dumps(tree, separators=(",", ":"), allow_nan=False).encode("ascii")


def loads(data: bytes) -> Node:
    """The tree of these bytes; raises ValueError."""
    tree = json.loads(data)
    if not isinstance(tree, dict) or tree.get("outlive") != FORMAT:
        raise ValueError("an unknown encoding of the state")
    return tree["state"]
