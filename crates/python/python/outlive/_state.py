"""The walk over a nested state: what a capture reads and what a restore fills.

A restore is checked as a whole before anything is changed (:class:`Plan`): structure
first, then every size, type and shape. Only then are arrays filled in place, plain
values replaced in their dict or list, and objects given their state.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from typing import Any, Callable

from outlive import _leaf, _tree
from outlive._leaf import REMEDY, Leaf, Spot, refuse
from outlive._tree import Key, Node
from outlive._types import Error

NAME_BYTES_MAX = 255
PAGE = 4096
ENTRY_BYTES = 18
"""Of a region in the table, besides its name."""
ELEMENT_BYTES = 7
"""More, if it consists of floating-point numbers."""
RENAME = "restore the state that was saved, or start the job under another name (--job)"


def _segment(key: Key) -> str:
    text = str(key).encode("utf-8", "backslashreplace").decode("utf-8")
    return text.replace("~", "~0").replace("/", "~1") or "~2"


def name_of(path: tuple[Key, ...], taken: Any = ()) -> str:
    """A region's name: its path, cut and made unique by a hash where it has to be."""
    name = "/".join(map(_segment, path)) or "~root"
    encoded = name.encode()
    if len(encoded) <= NAME_BYTES_MAX and name not in taken:
        return name
    unique = hashlib.sha256(repr(path).encode("utf-8", "backslashreplace")).hexdigest()[:32]
    return encoded[: NAME_BYTES_MAX - 33].decode("utf-8", "ignore") + "~" + unique


def _has_state(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(
        getattr(value, "load_state_dict", None)
    )


def _state_of(value: Any, name: str) -> Any:
    try:
        found = value.state_dict()
    except Exception as error:
        refuse(name, f"state_dict() raises {type(error).__name__}: {error}")
    if not isinstance(found, dict):
        refuse(name, f"state_dict() gives a {type(found).__name__}, no dict")
    return found


class Walk:
    """A state as a tree of nodes and a list of leaves."""

    def __init__(self, state: Any) -> None:
        self.leaves: dict[str, Leaf] = {}
        self.root = self.node(state, ())
        if not isinstance(state, (dict, list, tuple)) and not (
            _tree.is_leaf(self.root) or _tree.is_object(self.root)
        ):
            refuse("~root", f"the state is {_tree.kind_of(self.root)}", "put it in a dict")
        if isinstance(state, tuple) and _holds_plain(self.root):
            refuse(
                "~root",
                "the state is a tuple with plain values, which cannot be replaced in it",
                "use a dict or a list",
            )

    def node(self, value: Any, path: tuple[Key, ...]) -> Node:
        """The node of a value."""
        if len(path) > _tree.NODES_DEPTH_MAX:
            refuse(
                name_of(path[:4]),
                f"nested more than {_tree.NODES_DEPTH_MAX} deep, or it contains itself",
            )
        try:
            return _tree.encode_plain(value)
        except _tree.Unplain:
            pass
        if isinstance(value, dict):
            entries = []
            for key, item in value.items():
                if type(key) is not str and type(key) is not int:
                    refuse(
                        name_of(path),
                        f"a dict with a key of type {type(key).__name__}",
                        "use str or int as keys",
                    )
                entries.append([_tree.encode_key(key), self.node(item, (*path, key))])
            return {"d": entries}
        if isinstance(value, (list, tuple)):
            tag = "l" if isinstance(value, list) else "t"
            return {tag: [self.node(item, (*path, at)) for at, item in enumerate(value)]}
        name = name_of(path, self.leaves)
        found = _leaf.leaf(name, value)
        if found is None and _has_state(value):
            return {"o": self.node(_state_of(value, name), path)}
        found = found or _leaf.foreign_leaf(name, value)
        if found is None:
            refuse(name, f"a value of type {type(value).__module__}.{type(value).__qualname__}")
        self.leaves[name] = found
        return found.node(name)


def _holds_plain(node: Node) -> bool:
    """True for a plain value, and for a tuple that contains one at any depth."""
    if isinstance(node, dict) and "t" in node:
        return any(map(_holds_plain, node["t"]))
    return not isinstance(node, dict) or not node.keys() & {"a", "o", "l", "d"}


def capture(state: Any) -> tuple[bytes, list[tuple[str, int, int, int]], list[Any]]:
    """The tree, the regions (name, address, bytes, what numbers), and what keeps them in memory."""
    walk = Walk(state)
    regions, holds = [], []
    for name, leaf in walk.leaves.items():
        spot = leaf.source()
        regions.append((name, spot.address, spot.bytes, leaf.element))
        holds.append(spot.hold)
    return _tree.dumps(walk.root), regions, holds


def check(state: Any) -> tuple[int, int, int]:
    """Raises what a later capture or restore would; gives the number of regions, their
    bytes, and the bytes of memory that a capture will need."""
    walk = Walk(state)
    tree = len(_tree.dumps(walk.root))
    total, needed = tree, 2 * PAGE + _round(tree)
    table = 0
    for name, leaf in walk.leaves.items():
        _writable(name, leaf)
        total += leaf.nbytes
        needed += _round(leaf.nbytes)
        table += ENTRY_BYTES + len(name.encode()) + (ELEMENT_BYTES if leaf.element else 0)
    return len(walk.leaves) + 1, total, needed + _round(table)


def _round(count: int) -> int:
    return -(-count // PAGE) * PAGE


def _writable(name: str, leaf: Leaf) -> None:
    if leaf.read_only:
        refuse(name, "a read-only array, which a restore cannot fill", "use a writable copy")


class Plan:
    """What a restore is going to do. Making one changes nothing."""

    def __init__(self, state: Any, tree: bytes, regions: dict[str, int], version: int) -> None:
        """``regions``: the bytes of each region of the checkpoint that is not declared."""
        self.version = version
        self.regions = regions
        self.used: set[str] = set()
        self.spots: list[tuple[str, Spot]] = []
        self.actions: list[Callable[[], object]] = []
        self.loads: list[tuple[str, Any, Any]] = []
        Walk(state)  # refuses what could not be saved again
        try:
            saved = _tree.loads(tree)
        except ValueError as error:
            raise Error(
                406,
                f"version {version}",
                f"the tree of the state cannot be read: {error}",
                "use the version of Outlive that saved it",
            ) from error
        self.fit(saved, state, (), False)
        for name in regions:
            if name not in self.used:
                self.unclaimed(name)

    def targets(self) -> list[tuple[str, int, int]]:
        """Name, address and bytes of what is to be filled."""
        return [(name, spot.address, spot.bytes) for name, spot in self.spots]

    def finish(self) -> None:
        """After the bytes were copied: all the rest."""
        for _, spot in self.spots:
            if spot.finish is not None:
                spot.finish()
        for action in self.actions:
            action()
        for name, value, state in self.loads:
            try:
                value.load_state_dict(state)
            except Exception as error:
                reason = f"load_state_dict() raises {type(error).__name__}: {error}"
                raise Error(104, f"region '{name}'", reason, RENAME) from error

    # ---- differences ----

    def missing(self, name: str) -> None:
        reason = f"version {self.version} has no such entry"
        raise Error(103, f"region '{name}'", reason, RENAME)

    def unclaimed(self, name: str) -> None:
        reason = f"version {self.version} holds it, the state does not"
        raise Error(105, f"region '{name}'", reason, RENAME)

    def differs(self, name: str, now: str, saved: str) -> None:
        reason = f"the state has {now}, version {self.version} has {saved}"
        raise Error(104, f"region '{name}'", reason, RENAME)

    # ---- the walk over both ----

    def fit(self, saved: Node, value: Any, path: tuple[Key, ...], inside: bool) -> Any:
        """What stands in the place of ``value`` afterwards. ``inside`` an object with
        ``state_dict`` nothing is replaced in place: it is given a new state."""
        name = name_of(path)
        if _tree.is_leaf(saved):
            return self.fit_leaf(saved, value, name, inside)
        if isinstance(value, dict):
            if not (isinstance(saved, dict) and "d" in saved):
                return self.other(saved, value, path, inside, "a dict")
            return self.fit_dict(saved, value, path, inside)
        if isinstance(value, list):
            if not (isinstance(saved, dict) and "l" in saved):
                return self.other(saved, value, path, inside, "a list")
            return self.fit_list(saved, value, path, inside)
        if isinstance(value, tuple):
            if not (isinstance(saved, dict) and "t" in saved):
                return self.other(saved, value, path, inside, "a tuple")
            return self.fit_tuple(saved, value, path, inside)
        try:
            now = _tree.encode_plain(value)
        except _tree.Unplain:
            return self.fit_object(saved, value, path, inside)
        if not inside and not _tree.is_plain(saved):
            if value is None and not _tree.is_object(saved):
                return self.make(saved)
            self.differs(name, _tree.kind_of(now), _tree.kind_of(saved))
        return value if now == saved else self.make(saved)

    def other(self, saved: Node, value: Any, path: tuple[Key, ...], inside: bool, now: str) -> Any:
        if not inside:
            self.differs(name_of(path), now, _tree.kind_of(saved))
        return self.make(saved)

    def fit_leaf(self, saved: Node, value: Any, name: str, inside: bool) -> Any:
        region, kind, dtype, shape, order = saved["a"]
        plain = value is None or isinstance(value, (dict, list, tuple, str, bytes, int, float))
        found = None if plain else (_leaf.leaf(name, value) or self.foreign(name, value))
        if found is None:
            if value is None or inside:
                return self.make(saved)
            self.differs(name, f"a {type(value).__name__}", _tree.kind_of(saved))
        assert found is not None
        if (found.kind, found.dtype, list(found.shape)) != (kind, dtype, shape):
            now = f"{found.kind} {found.dtype} {list(found.shape)}"
            self.differs(name, now, f"{kind} {dtype} {shape}")
        _writable(name, found)
        self.claim(region, found, found.target(order))
        return value

    def foreign(self, name: str, value: Any) -> Leaf | None:
        return None if _has_state(value) else _leaf.foreign_leaf(name, value)

    def claim(self, region: str, leaf: Leaf, spot: Spot) -> None:
        bytes_saved = self.regions.get(region)
        if bytes_saved is None:
            self.missing(region)
        if bytes_saved != spot.bytes:
            self.differs(region, f"{spot.bytes} bytes", f"{bytes_saved} bytes")
        self.used.add(region)
        self.spots.append((region, spot))

    def fit_dict(self, saved: Node, value: Any, path: tuple[Key, ...], inside: bool) -> Any:
        entries = _tree.pairs(saved)
        grows = not value and (inside or _tree.is_plain(saved))
        if not grows:
            for key in value:
                if key not in entries:
                    self.missing(name_of((*path, key)))
            for key in entries:
                if key not in value:
                    self.unclaimed(name_of((*path, key)))
        fresh = {
            key: self.fit(node, value[key], (*path, key), inside)
            if key in value
            else self.make(node)
            for key, node in entries.items()
        }
        if inside:
            new = copy.copy(value)
            new.update(fresh)
            return new
        changed = {
            key: item for key, item in fresh.items() if key not in value or item is not value[key]
        }
        if changed:
            self.actions.append(lambda: value.update(changed))
        return value

    def fit_list(self, saved: Node, value: Any, path: tuple[Key, ...], inside: bool) -> Any:
        nodes = saved["l"]
        if len(nodes) != len(value):
            plain = _tree.is_plain(saved) and _tree.is_plain(Walk([value]).root)
            if not plain and not (inside and not value):
                if len(nodes) < len(value):
                    self.missing(name_of((*path, len(nodes))))
                self.unclaimed(name_of((*path, len(value))))
            fresh = [self.make(node) for node in nodes]
        else:
            fresh = [
                self.fit(node, value[at], (*path, at), inside) for at, node in enumerate(nodes)
            ]
        if inside:
            return fresh
        if len(fresh) != len(value) or any(a is not b for a, b in zip(fresh, value)):
            self.actions.append(lambda: value.__setitem__(slice(None), fresh))
        return value

    def fit_tuple(self, saved: Node, value: Any, path: tuple[Key, ...], inside: bool) -> Any:
        nodes = saved["t"]
        if len(nodes) != len(value):
            if len(nodes) < len(value):
                self.missing(name_of((*path, len(nodes))))
            self.unclaimed(name_of((*path, len(value))))
        fresh = [self.fit(node, value[at], (*path, at), inside) for at, node in enumerate(nodes)]
        if all(a is b for a, b in zip(fresh, value)):
            return value
        named = getattr(type(value), "_make", None)
        return named(fresh) if named is not None else tuple(fresh)

    def fit_object(self, saved: Node, value: Any, path: tuple[Key, ...], inside: bool) -> Any:
        name = name_of(path)
        if not _tree.is_object(saved) or not _has_state(value):
            now = "an object with state_dict" if _has_state(value) else _named(name, value)
            if inside:
                return self.make(saved)
            self.differs(name, now, _tree.kind_of(saved))
        state = self.fit(saved["o"], _state_of(value, name), path, True)
        self.loads.append((name, value, state))
        return value

    def make(self, saved: Node) -> Any:
        """The value of a node, in memory of its own."""
        if _tree.is_leaf(saved):
            found = _leaf.make(saved)
            self.claim(saved["a"][0], found, found.target(saved["a"][4]))
            return _leaf.value_of(found)
        if _tree.is_object(saved):
            raise Error(104, "call", "an object with state_dict has no place in the state", RENAME)
        if isinstance(saved, dict) and "d" in saved:
            return {key: self.make(node) for key, node in _tree.pairs(saved).items()}
        if isinstance(saved, dict) and "l" in saved:
            return [self.make(node) for node in saved["l"]]
        if isinstance(saved, dict) and "t" in saved:
            return tuple(self.make(node) for node in saved["t"])
        return _tree.decode(saved)


def _named(name: str, value: Any) -> str:
    found = _leaf.leaf(name, value) or _leaf.foreign_leaf(name, value)
    if found is None:
        refuse(name, f"a value of type {type(value).__qualname__}", REMEDY)
    return _tree.kind_of(found.node(name))


def steps(job: Any, start: int, state: Any, stop: int) -> Iterator[int]:
    """Counts from a version restored; each turn offers a checkpoint."""
    for step in range(start, stop):
        job.checkpoint(step, state)
        yield step
