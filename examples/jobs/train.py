"""Train a small model on all GPUs of a job, save when Slurm warns, and go on from there in the next job."""

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 10_000
CHECKPOINT = "checkpoint.pt"

warned = False


def warn(*_):
    global warned
    warned = True


def main():
    signal.signal(signal.SIGUSR1, warn)
    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")  # RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are the job's
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    model = DistributedDataParallel(torch.nn.Linear(64, 64).to(device), device_ids=[device.index] if gpu else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    begin = 0
    if os.path.exists(CHECKPOINT):
        state = torch.load(CHECKPOINT, map_location=device)
        model.module.load_state_dict(state["model"])
        begin = state["step"]
    for step in range(begin, STEPS):
        loss = model(torch.randn(32, 64, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # All ranks save after the same step, the one at which the first of them knows of the warning.
        stop = torch.tensor(int(warned), device=device)
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        if stop.item() or step == STEPS - 1:
            if dist.get_rank() == 0:
                torch.save({"model": model.module.state_dict(), "step": step + 1}, CHECKPOINT + ".new")
                os.replace(CHECKPOINT + ".new", CHECKPOINT)
                print(f"saved after step {step + 1} of {STEPS}")
            break
    # This rank's own warning may come later than another one's, or twice; and Python takes handlers away before it ends.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(0)  # and not an error: the script of the job submits the next one


if __name__ == "__main__":
    main()
