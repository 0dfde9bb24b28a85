"""Small classes that behave like torch's: for tests where torch is not installed."""

from __future__ import annotations

from typing import Any

import numpy as np


class Device:
    def __init__(self, kind: str) -> None:
        self.type = kind

    def __str__(self) -> str:
        return f"{self.type}:0"


class Tensor:
    """A tensor over NumPy memory; its dtype is only a name, as bfloat16 is."""

    def __init__(self, array: np.ndarray, dtype: str = "", kind: str = "cpu") -> None:
        self.array = array
        self.dtype = dtype or f"torch.{array.dtype}"
        self.device = Device(kind)
        self.requires_grad = True

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def detach(self) -> Tensor:
        return Tensor(self.array, self.dtype)

    def numpy(self) -> np.ndarray:
        raise RuntimeError("it requires grad, and NumPy does not know the type")

    def is_contiguous(self) -> bool:
        return self.array.flags.c_contiguous

    def contiguous(self) -> Tensor:
        return self if self.is_contiguous() else Tensor(self.array.copy(order="C"), self.dtype)

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def element_size(self) -> int:
        return self.array.itemsize

    def copy_(self, other: Tensor) -> None:
        self.array[...] = other.array


class Module:
    """Named tensors; strict about their names when it is given a state."""

    def __init__(self, **tensors: Tensor) -> None:
        self.tensors = tensors
        self.loaded = 0

    def state_dict(self) -> dict[str, Any]:
        return dict(self.tensors)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state.keys() != self.tensors.keys():
            raise RuntimeError("other keys")
        for name, tensor in state.items():
            self.tensors[name].copy_(tensor)
        self.loaded += 1


class Optimizer:
    """Momenta that appear at the first step, beside plain values; as torch's do."""

    def __init__(self, weights: np.ndarray, rate: float) -> None:
        self.weights = weights
        self.state: dict[int, Any] = {}
        self.groups = [{"lr": rate, "betas": (0.9, 0.999), "params": [0]}]

    def step(self, gradient: np.ndarray) -> None:
        mine = self.state.setdefault(0, {"step": 0, "momentum": np.zeros_like(gradient)})
        mine["step"] += 1
        mine["momentum"] = mine["momentum"] * self.groups[0]["betas"][0] + gradient
        self.weights -= self.groups[0]["lr"] * mine["momentum"]

    def state_dict(self) -> dict[str, Any]:
        return {"state": self.state, "param_groups": self.groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state, self.groups = state["state"], state["param_groups"]


def bits(value: float) -> int:
    """The pattern of a float."""
    return int(np.float64(value).view(np.uint64))
