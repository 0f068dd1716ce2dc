"""A task of two: adds up numbers with its neighbour through NCCL, and says how fast."""

import json
import os
import time

import torch
import torch.distributed as dist

rank, size, local = (int(os.environ["SLURM_" + v]) for v in ("PROCID", "NTASKS", "LOCALID"))
torch.cuda.set_device(local)
dist.init_process_group("nccl", rank=rank, world_size=size, init_method="env://")
data = torch.full((256 << 20,), float(rank + 1), dtype=torch.bfloat16, device="cuda")  # 512 MiB
dist.all_reduce(data)
assert data[0].item() == 3 and data[-1].item() == 3
rounds = int(os.environ["ROUNDS"])
rates = []
for _ in range(5):
    torch.cuda.synchronize()
    dist.barrier()
    began = time.perf_counter()
    for _ in range(rounds):
        dist.all_reduce(data)
    torch.cuda.synchronize()
    rates.append(rounds * data.numel() * data.element_size() / (time.perf_counter() - began) / 1e9)
if rank == 0:
    with open(os.path.join(os.environ["RESULTS"], os.environ["RESULT"] + ".json"), "w") as f:
        json.dump({"GB/s": [round(r, 1) for r in sorted(rates)], "shm": os.stat("/dev/shm").st_dev}, f)
dist.destroy_process_group()
