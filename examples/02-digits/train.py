#!/usr/bin/env python3
"""Data-parallel training of a small network on handwritten digits.

    mpirun -n 4 python train.py STEPS OUTPUT [--batch N] [--seed S] [--sleep-ms N]

A network of two layers (64 -> 48 -> 10) learns the 1,797 digits that scikit-learn
ships, by stochastic gradient descent with momentum. Every rank computes the
gradient of its share of each batch; rank 0 adds the shares in the order of the
ranks and sends the sum back, over plain TCP: the launcher need not be an MPI.
Rank and number of ranks come from the launcher; DIGITS_ADDRESS (host:port,
default 127.0.0.1:29417) is where rank 0 listens.

All ranks hold the same weights, and the order of the digits depends only on the
seed and the step. For a given number of ranks the result is the same, bit for
bit, however often the job was restarted. Protected by the three lines of Outlive,
marked 1 to 3.
"""

import os

# One thread for linear algebra: ranks share the cores, and the order of sums
# must not depend on how many are free.
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
import hashlib
import socket
import sys
import time

import numpy as np
import outlive
from sklearn.datasets import load_digits

HIDDEN = 48
LEARNING_RATE = 0.05
MOMENTUM = 0.9
TEST_DIGITS = 297  # of 1,797; the rest is for training
TIMEOUT_S = 60.0  # bound of every wait on another rank
HELLO = b"DIGITS1\0"


class Star:
    """Sums arrays over all ranks: rank 0 in the middle, one TCP connection each."""

    def __init__(self, rank: int, ranks: int, address: str) -> None:
        self.rank, self.ranks = rank, ranks
        self.peers: list[socket.socket] = []  # on rank 0 by rank, from 1; else rank 0
        host, _, port = address.rpartition(":")
        if ranks == 1:
            return
        if rank == 0:
            self._accept_all(host, int(port))
        else:
            self.peers = [self._connect(host, int(port))]

    def _accept_all(self, host: str, port: int) -> None:
        found: dict[int, socket.socket] = {}
        with socket.create_server((host, port), backlog=self.ranks) as server:
            server.settimeout(TIMEOUT_S)
            while len(found) < self.ranks - 1:
                peer, _ = server.accept()
                self._prepare(peer)
                hello = self._receive(peer, len(HELLO) + 4)
                other = int.from_bytes(hello[len(HELLO) :], "little")
                if not hello.startswith(HELLO) or other in found or not 0 < other < self.ranks:
                    peer.close()
                    continue
                found[other] = peer
        self.peers = [found[other] for other in sorted(found)]

    def _connect(self, host: str, port: int) -> socket.socket:
        end = time.monotonic() + TIMEOUT_S
        while True:
            try:
                peer = socket.create_connection((host, port), timeout=TIMEOUT_S)
                break
            except ConnectionRefusedError:  # rank 0 is not there yet
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)
        self._prepare(peer)
        peer.sendall(HELLO + self.rank.to_bytes(4, "little"))
        return peer

    @staticmethod
    def _prepare(peer: socket.socket) -> None:
        peer.settimeout(TIMEOUT_S)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @staticmethod
    def _receive(peer: socket.socket, count: int) -> bytes:
        parts = []
        while count > 0:
            part = peer.recv(min(count, 1 << 20))
            if not part:
                raise ConnectionError("another rank has gone")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def sum(self, array: np.ndarray) -> np.ndarray:
        """The sum over all ranks, added in the order of the ranks, on every rank."""
        if self.rank == 0:
            total = array.copy()
            for peer in self.peers:
                total += np.frombuffer(self._receive(peer, array.nbytes), array.dtype)
            for peer in self.peers:
                peer.sendall(total.tobytes())
            return total
        self.peers[0].sendall(array.tobytes())
        return np.frombuffer(self._receive(self.peers[0], array.nbytes), array.dtype)

    def close(self) -> None:
        """Closes the connections."""
        for peer in self.peers:
            peer.close()


def split(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Digits and labels for training and for the test, the same on every rank."""
    digits = load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.target))
    pixels, labels = digits.data[order] / 16.0, digits.target[order]
    return (
        pixels[TEST_DIGITS:],
        labels[TEST_DIGITS:],
        pixels[:TEST_DIGITS],
        labels[:TEST_DIGITS],
    )


def begin(seed: int) -> dict[str, np.ndarray]:
    """Weights and momenta in two flat arrays, so that one message holds a gradient."""
    random = np.random.default_rng(seed + 1)
    first = random.normal(0.0, np.sqrt(2.0 / 64), (64, HIDDEN))
    second = random.normal(0.0, np.sqrt(2.0 / HIDDEN), (HIDDEN, 10))
    weights = np.concatenate([first.ravel(), np.zeros(HIDDEN), second.ravel(), np.zeros(10)])
    return {"weights": weights, "momentum": np.zeros_like(weights)}


def layers(flat: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Views of a flat array as the two layers' matrices and biases."""
    ends = np.cumsum([64 * HIDDEN, HIDDEN, HIDDEN * 10])
    first, bias1, second, bias2 = np.split(flat, ends)
    return first.reshape(64, HIDDEN), bias1, second.reshape(HIDDEN, 10), bias2


def forward(weights: np.ndarray, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Hidden activations, and the probabilities of the ten digits."""
    first, bias1, second, bias2 = layers(weights)
    hidden = np.maximum(pixels @ first + bias1, 0.0)
    scores = hidden @ second + bias2
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, powers / powers.sum(axis=1, keepdims=True)


def gradient(weights: np.ndarray, pixels: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Of the cross-entropy, summed over the given digits."""
    hidden, probabilities = forward(weights, pixels)
    probabilities[np.arange(len(labels)), labels] -= 1.0
    result = np.empty_like(weights)
    first, bias1, second, bias2 = layers(result)
    second[:] = hidden.T @ probabilities
    bias2[:] = probabilities.sum(axis=0)
    back = (probabilities @ layers(weights)[2].T) * (hidden > 0.0)
    first[:] = pixels.T @ back
    bias1[:] = back.sum(axis=0)
    return result


def batch_of(step: int, seed: int, count: int, size: int) -> np.ndarray:
    """Which digits step `step` uses: a fresh shuffle each epoch, from the seed alone."""
    epoch, place = divmod(step, count // size)
    order = np.random.default_rng([seed, epoch]).permutation(count)
    return order[place * size : (place + 1) * size]


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description="Train on digits, protected by Outlive.")
    parser.add_argument("steps", type=int)
    parser.add_argument("output", help="the final weights, as doubles")
    parser.add_argument("--batch", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sleep-ms", type=float, default=0.0, help="makes steps last")
    args = parser.parse_args()

    train, labels, test, test_labels = split(args.seed)
    state = begin(args.seed)

    job = outlive.open()  # 1
    star = Star(job.rank, job.ranks, os.environ.get("DIGITS_ADDRESS", "127.0.0.1:29417"))
    start = job.restore(state)  # 2
    for step in range(start, args.steps):
        job.checkpoint(step, state)  # 3
        batch = batch_of(step, args.seed, len(labels), args.batch)
        mine = np.array_split(batch, job.ranks)[job.rank]
        total = star.sum(gradient(state["weights"], train[mine], labels[mine]))
        state["momentum"] *= MOMENTUM
        state["momentum"] -= LEARNING_RATE / args.batch * total
        state["weights"] += state["momentum"]
        time.sleep(args.sleep_ms / 1000.0)

    if job.rank == 0:
        weights = state["weights"]
        right = forward(weights, test)[1].argmax(axis=1) == test_labels
        weights.tofile(args.output)
        print(
            f"digits: {args.steps} steps, {job.ranks} ranks, "
            f"accuracy {100.0 * right.mean():.2f} % on {len(right)} unseen digits, "
            f"digest {hashlib.sha256(weights.tobytes()).hexdigest()[:16]}"
        )
    star.close()
    job.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
