"""A training loop as users write it: gradients are averaged over all ranks, and each rank draws
data and noise of its own. Writes the parameters, each rank's losses and its random state."""

import argparse
import os
import time
from pathlib import Path

import outlive
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("output", type=Path)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--sleep-ms", type=float, default=0)
options = parser.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(7)  # fixed seed: all ranks begin with the same parameters
net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
# Else it lays gradients out anew after the first step of each start, and sums differ in their last
# bits from those of a run that began once.
model = DistributedDataParallel(net, find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(100 + rank)  # fixed seed: runs are compared
state = {
    "model": model,
    "optimizer": optimizer,
    "random": torch.get_rng_state(),
    "losses": [],
}

job = outlive.open()
start = job.restore(state)
torch.set_rng_state(state["random"])
# At once, with its end: ranks share what they write to.
os.write(1, f"rank {rank} of {dist.get_world_size()}, from {start}\n".encode())
for step in range(start, options.steps):
    state["random"].copy_(torch.get_rng_state())
    job.checkpoint(step, state)
    inputs = torch.randn(32, 16)
    loss = (model(inputs) - inputs.sum(1, keepdim=True).sin()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    state["losses"].append(loss.item())
    time.sleep(options.sleep_ms / 1000)
job.close()

# Bytes that depend on values alone, as an archive of torch's does not.
lines = [f"{name} {value.flatten().tolist()}" for name, value in net.state_dict().items()]
lines += [repr(state["losses"]), str(int(torch.get_rng_state().long().sum()))]
options.output.mkdir(exist_ok=True)
part = options.output / f"rank-{rank}.new-{os.getpid()}"
part.write_text("\n".join(lines))
part.rename(options.output / f"rank-{rank}")
dist.barrier()
