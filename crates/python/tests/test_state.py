"""The walk: what a capture reads, a restore gives back; and what it refuses."""

import array
import collections
import datetime
import enum
import mmap
import struct
from typing import Any

import numpy as np
import outlive
import pytest
from conftest import carry, skip
from likeness import Module, Optimizer, Tensor
from outlive import _state, _tree

NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF4_0000_DEAD_BEEF))[0]

PLAIN = [
    None,
    True,
    False,
    0,
    -1,
    1 << 63,
    -(1 << 64),
    7**20_000,
    0.0,
    -0.0,
    float("inf"),
    float("-inf"),
    NAN,
    5e-324,
    complex(-0.0, NAN),
    "",
    "Grüße \N{GREEK SMALL LETTER PI} \0 \ud800",
    b"",
    bytes(range(256)),
    np.float32(0.1),
    np.int8(-5),
    np.bool_(True),
    np.datetime64("2026-03-01T12:00"),
    [],
    {},
    (),
    [1, [2.5, (None, "x")], {"a": {0: b"y"}}],
]


def exactly(value: object) -> object:
    """Something that is equal only for the same type and the same bits."""
    return _tree.dumps(_state.Walk([value]).root), type(value)


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: type(value).__name__)
def test_plain_values_come_back_exactly(value: object) -> None:
    state = {"v": None}
    carry({"v": value}, state)
    assert exactly(state["v"]) == exactly(value)
    again = [17]
    carry([value], again) if not isinstance(value, (list, dict, tuple)) else None
    if not isinstance(value, (list, dict, tuple)):
        assert exactly(again[0]) == exactly(value)


def test_the_bits_of_a_nan_stay() -> None:
    state = {"v": 0.0}
    carry({"v": NAN}, state)
    assert struct.pack("<d", state["v"]) == struct.pack("<d", NAN)


ARRAYS = {
    "c": np.arange(12.0).reshape(3, 4),
    "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "gaps": np.arange(48.0).reshape(6, 8)[::2, 1::3],
    "reversed": np.arange(7)[::-1],
    "scalar": np.array(2.5),
    "empty": np.zeros((0, 3), np.int16),
    "nan": np.array([0x7FF4_0000_DEAD_BEEF, 0xFFF8_0000_0000_0001], np.uint64).view("<f8"),
    "big-endian": np.arange(5, dtype=">i4"),
    "complex": np.array([1 + 2j, -3j], np.complex64),
    "bool": np.array([True, False, True]),
    "time": np.array(["2026-03-01"], "M8[s]"),
    "text": np.array(["ab", "c"], "U3"),
    "record": np.array([(1, 2.5), (3, 4.5)], [("a", "<i2"), ("b", "<f8")]),
    "half": np.array([1.5], np.float16),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_are_filled_in_place(name: str) -> None:
    saved = ARRAYS[name]
    # the same strides, from memory with other content
    base = np.empty_like(saved) if saved.base is None else None
    target = base if base is not None else saved.copy()[...]
    if name in ("gaps", "reversed"):
        target = np.zeros(saved.size * 9, saved.dtype)[: saved.size * 3 : 3].reshape(saved.shape)
    state = {"x": target}
    carry({"x": saved}, state)
    assert state["x"] is target
    assert target.tobytes() == saved.tobytes()


@pytest.mark.parametrize("orders", ["CF", "FC"])
def test_an_array_may_change_its_order(orders: str) -> None:
    saved = np.array(np.arange(24).reshape(2, 3, 4), order=orders[0])
    target = np.zeros((2, 3, 4), int, order=orders[1])
    carry([saved], [target])
    assert (target == saved).all()


def test_buffers_are_filled_in_place() -> None:
    mapped = mmap.mmap(-1, 8)
    mapped[:] = b"12345678"
    saved = [bytearray(b"abc"), array.array("d", [1.5, NAN]), memoryview(bytearray(4)), mapped]
    saved[2][:] = b"wxyz"
    state = [bytearray(3), array.array("d", [0, 0]), memoryview(bytearray(4)), mmap.mmap(-1, 8)]
    kept = list(state)
    carry(saved, state)
    assert all(a is b for a, b in zip(kept, state))
    assert [bytes(x) for x in state] == [bytes(x) for x in saved]
    state[0].append(1)  # nothing holds it any more
    carry([bytearray()], [bytearray()])
    carry([memoryview(bytearray(b"a-b-"))[::2]], [view := memoryview(bytearray(4))[::2]])
    assert bytes(view) == b"ab"


def test_nested_state_keeps_its_containers() -> None:
    def make(fill: float) -> dict:
        return {
            "model": {"layers": [{"weight": np.full(3, fill)}, {"weight": np.full((2, 2), fill)}]},
            "pair": (np.full(2, fill), {"n": int(fill)}),
            "mixed": (int(fill), np.full(1, fill)),
            "ordered": collections.OrderedDict(b=fill, a="x" * int(fill)),
            "history": [float(i) for i in range(int(fill))],
            0: "zero",
            "0/~": np.full(1, fill),
        }

    saved, state = make(3.0), make(1.0)
    kept = [state["model"]["layers"], state["pair"], state["ordered"], state["history"]]
    held = state["mixed"][1]
    carry(saved, state)
    assert exactly(state) == exactly(saved)
    assert kept[0] is state["model"]["layers"] and kept[1] is state["pair"]
    assert kept[2] is state["ordered"] and kept[3] is state["history"]
    assert state["mixed"][0] == 3 and state["mixed"][1] is held and held[0] == 3.0
    assert (state["model"]["layers"][1]["weight"] == 3.0).all() and state["0/~"][0] == 3.0


def test_names_are_paths() -> None:
    long = "k" * 300
    state = {
        "model": {"layers": [np.zeros(1)]},
        "a/b": np.zeros(1),
        "a": {"b": np.zeros(1), "": np.zeros(1)},
        "~tree": np.zeros(1),
        long: np.zeros(1),
        long + "2": np.zeros(1),
        "i": {0: np.zeros(1), "0": np.zeros(1)},
    }
    _, regions, _ = _state.capture(state)
    names = [name for name, *_ in regions]
    assert names[:5] == ["model/layers/0", "a~1b", "a/b", "a/~2", "~0tree"]
    assert len(set(names)) == len(names) and max(len(name) for name in names) <= 255
    again = {key: value for key, value in reversed(state.items())}
    carry(state, again)


def test_named_tuples_stay_what_they_are() -> None:
    Point = collections.namedtuple("Point", "x y")
    state = {"p": Point(0, 0)}
    carry({"p": Point(1, 2)}, state)
    assert state["p"] == Point(1, 2) and type(state["p"]) is Point


def test_things_like_tensors() -> None:
    half = np.arange(6, dtype=np.uint16)
    saved = {"w": Tensor(half, "torch.bfloat16"), "g": Tensor(np.arange(9.0).reshape(3, 3).T)}
    gaps = Tensor(np.zeros((3, 3)).T)
    state = {"w": Tensor(np.zeros(6, np.uint16), "torch.bfloat16"), "g": gaps}
    carry(saved, state)
    assert (state["w"].array == half).all()
    assert state["g"] is gaps and (gaps.array == saved["g"].array).all()
    with pytest.raises(outlive.Error, match="bfloat16") as caught:
        carry(saved, {"w": Tensor(np.zeros(6, np.uint16), "torch.float16"), "g": gaps})
    assert caught.value.code == 104
    with pytest.raises(outlive.Error, match="cuda") as caught:
        _state.check({"w": Tensor(half, kind="cuda")})
    assert caught.value.code == 109 and "cpu()" in caught.value.remedy


def test_objects_with_a_state() -> None:
    weights = np.arange(4.0)
    saved = {
        "module": Module(w=Tensor(weights), b=Tensor(np.ones(1))),
        "optimizer": Optimizer(weights.copy(), 0.1),
    }
    saved["optimizer"].step(np.ones(4))
    fresh = {
        "module": Module(w=Tensor(np.zeros(4)), b=Tensor(np.zeros(1))),
        "optimizer": Optimizer(np.zeros(4), 0.7),
    }
    module, place = fresh["module"], fresh["module"].tensors["w"].array
    carry(saved, fresh)
    assert fresh["module"] is module and module.loaded == 1
    assert (place == weights).all()
    restored = fresh["optimizer"]
    assert restored.groups == [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0]}]
    assert restored.state[0]["step"] == 1 and (restored.state[0]["momentum"] == 1.0).all()
    with pytest.raises(outlive.Error) as caught:
        carry(saved, {"module": Module(w=Tensor(np.zeros(4))), "optimizer": restored})
    assert caught.value.code == 105 and caught.value.entity == "region 'module/b'"


def base() -> dict:
    return {"a": np.ones(3), "n": 1, "list": [np.ones(2), np.ones(2)], "d": {"x": 1.0}}


CHANGES = {
    "missing": (lambda s: s.update(more=np.ones(1)), 103, "more"),
    "missing plain": (lambda s: s["d"].update(y=1), 103, "d/y"),
    "extra": (lambda s: s.pop("a"), 105, "a"),
    "extra plain": (lambda s: s["d"].update(z=s["d"].pop("x")), 103, "d/z"),
    "shorter": (lambda s: s["list"].pop(), 105, "list/1"),
    "longer": (lambda s: s["list"].append(np.ones(2)), 103, "list/2"),
    "size": (lambda s: s.update(a=np.ones(4)), 104, "a"),
    "dtype": (lambda s: s.update(a=np.ones(3, np.int64)), 104, "a"),
    "byte order": (lambda s: s.update(a=np.ones(3, ">f8")), 104, "a"),
    "shape": (lambda s: s.update(a=np.ones((3, 1))), 104, "a"),
    "kind": (lambda s: s.update(a=array.array("d", [1, 1, 1])), 104, "a"),
    "array for plain": (lambda s: s.update(n=np.ones(1)), 104, "n"),
    "plain for array": (lambda s: s.update(a=3), 104, "a"),
    "list for dict": (lambda s: s.update(d=[1.0]), 104, "d"),
    "read-only": (lambda s: s["a"].setflags(write=False), 109, "a"),
    "stranger": (lambda s: s.update(n=object()), 109, "n"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_difference_is_named_and_changes_nothing(name: str) -> None:
    change, code, path = CHANGES[name]
    saved = base()
    saved["a"] += 1.0
    saved["n"], saved["d"]["x"] = 2, 2.0
    saved["list"][0] += 1.0
    state = base()
    change(state)
    before = {k: v for k, v in state.items() if not isinstance(v, (np.ndarray, list, dict))}
    with pytest.raises(outlive.Error) as caught:
        carry(saved, state)
    assert (caught.value.code, caught.value.entity) == (code, f"region '{path}'")
    assert str(code) in str(caught.value) and caught.value.remedy in str(caught.value)
    assert all(state[key] is value for key, value in before.items())
    assert (state["list"][0] == 1.0).all() and state["d"] != {"x": 2.0}
    if isinstance(state.get("a"), np.ndarray):
        assert (state["a"] == 1).all()


class Colour(enum.IntEnum):
    RED = 1


class Broken:
    def state_dict(self) -> dict:
        raise KeyError("gone")

    def load_state_dict(self, state: dict) -> None: ...


REFUSED = {
    "object": {"x": object()},
    "set": {"x": {1, 2}},
    "date": {"x": datetime.date(2026, 3, 1)},
    "enum": {"x": Colour.RED},
    "object array": {"x": np.array([object()])},
    "masked array": {"x": np.ma.masked_array([1, 2], [True, False])},
    "key": {"x": {1.5: 1}},
    "read-only buffer": {"x": memoryview(b"abc")},
    "broken": {"x": Broken()},
    "plain root": 5,
    "plain in a root tuple": (np.ones(1), 5),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_stored_is_refused(name: str) -> None:
    with pytest.raises(outlive.Error) as caught:
        _state.check(REFUSED[name])
    assert caught.value.code == 109
    assert caught.value.remedy


def test_a_state_that_contains_itself_is_refused() -> None:
    state: dict = {}
    state["x"] = [state]
    with pytest.raises(outlive.Error, match="contains itself"):
        _state.check(state)


@pytest.mark.parametrize(
    ("element", "dtypes"),
    [
        (1, ["f2"]),
        (3, ["f4", "c8"]),
        (4, ["f8", "c16"]),
        (0, ["i4", ">f8", "g", "?", [("x", "f8")]]),
    ],
)
def test_what_numbers_an_array_consists_of(element: int, dtypes: list[Any]) -> None:
    """As outlive_describe has them: of others nobody counts NaN."""
    _, regions, _ = _state.capture([np.zeros(3, np.dtype(dtype)) for dtype in dtypes])
    assert [region[3] for region in regions] == [element] * len(dtypes)


def test_what_numbers_a_buffer_consists_of() -> None:
    state = {"d": array.array("d", [1.0]), "f": array.array("f", [1.0]), "b": bytearray(8)}
    _, regions, _ = _state.capture(state)
    assert {region[0]: region[3] for region in regions} == {"d": 4, "f": 3, "b": 0}


def test_what_is_expected_is_what_the_capture_takes() -> None:
    state = {"a": np.zeros(5000), "b": [np.zeros(1), 5]}
    regions, total, needed = _state.check(state)
    tree, spots, _ = _state.capture(state)
    assert regions == len(spots) + 1
    assert total == len(tree) + sum(count for _, _, count, _ in spots)
    assert needed >= total and needed % 4096 == 0


def test_real_torch() -> None:
    try:
        import torch
    except ImportError:
        skip("torch", "torch is not installed")

    def make(seed: int) -> dict:
        torch.manual_seed(seed)
        model = torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01 * seed)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        return {
            "model": model,
            "optimizer": optimizer,
            "schedule": schedule,
            "half": torch.full((3,), float(seed), dtype=torch.bfloat16, requires_grad=True),
            "turned": torch.arange(6.0).reshape(2, 3).t() * seed,
            "random": torch.get_rng_state(),
        }

    def train(state: dict) -> None:
        state["optimizer"].zero_grad()
        (state["model"](torch.ones(5, 3) * torch.arange(5.0)[:, None]) ** 2).mean().backward()
        state["optimizer"].step()
        state["schedule"].step()

    saved, state = make(1), make(2)
    for _ in range(3):
        train(saved)
    carry(saved, state)
    for _ in range(3):
        train(saved)
        train(state)
    for a, b in zip(saved["model"].state_dict().values(), state["model"].state_dict().values()):
        assert torch.equal(a, b)
    assert torch.equal(saved["half"], state["half"])
    assert torch.equal(saved["turned"], state["turned"])
    assert saved["schedule"].get_last_lr() == state["schedule"].get_last_lr()


def test_what_is_not_there_yet_is_made() -> None:
    saved = {
        "best": np.arange(3.0),
        "counts": {"a": 1, 2: [None]},
        "later": {"x": [np.ones(2, ">i2"), bytearray(b"ab")]},
        "record": np.array([(1, 2.5)], [("a", "<i2"), ("b", "<f8")]),
    }
    state: dict = {"best": None, "counts": {}, "later": None, "record": None}
    carry(saved, state)
    assert exactly(state) == exactly(saved)
    assert (state["best"] == saved["best"]).all() and state["record"]["b"][0] == 2.5
    assert state["later"]["x"][0].dtype == ">i2" and state["later"]["x"][1] == b"ab"
    with pytest.raises(outlive.Error) as caught:
        # Also where torch is installed: it has no such type.
        carry({"t": Tensor(np.ones(3), "torch.unheard_of")}, {"t": None})
    assert caught.value.code == 104 and "allocate" in caught.value.remedy


def test_one_array_under_two_names_stays_one() -> None:
    tied = np.zeros(3)
    state = {"a": tied, "b": tied, "part": tied[1:]}
    whole = np.arange(3.0)
    carry({"a": whole, "b": whole, "part": whole[1:]}, state)
    assert state["a"] is state["b"] and tied.tolist() == [0.0, 1.0, 2.0]


def test_an_object_that_refuses_its_state_is_named() -> None:
    class Picky(Module):
        def load_state_dict(self, state: dict) -> None:
            raise ValueError("not today")

    with pytest.raises(outlive.Error, match="not today") as caught:
        carry([Module(w=Tensor(np.ones(1)))], [Picky(w=Tensor(np.ones(1)))])
    assert (caught.value.code, caught.value.entity) == (104, "region '0'")


def test_a_tree_of_another_format_is_refused() -> None:
    for tree in (b"", b"{}", b'{"outlive":2,"state":null}', b"\xff"):
        with pytest.raises(outlive.Error) as caught:
            _state.Plan({}, tree, {}, 1)
        assert caught.value.code == 406
