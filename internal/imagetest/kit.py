"""Tests that every image with a Python is given, one for each word: python kit.py WORD [MODULE...].

Each task of a job runs this. What rank 0 prints as "NAME = VALUE UNIT" is what the test measured; a test that finds something wrong
ends with a code other than 0 and says what it is. Bandwidths are in units of 10^9 bytes a second, as nccl-tests has them.
"""

import importlib
import os
import platform
import runpy
import sys
import time

RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", "0"))


def say(name, value, unit=""):
    print(f"{name} = {value:.6g} {unit}".rstrip(), flush=True)


def fail(text):
    print(f"rank {RANK} on {platform.node()}: {text}", file=sys.stderr, flush=True)
    sys.exit(1)


def start():
    """Joins the other ranks. Returns torch, its distributed part and the device of this rank."""
    import torch
    import torch.distributed as dist

    if torch.cuda.is_available():
        # Where a task sees one GPU alone, that is its own.
        device = torch.device("cuda", LOCAL_RANK % torch.cuda.device_count())
        torch.cuda.set_device(device)
    else:
        if os.path.exists("/dev/nvidia0"):
            fail("there is a GPU, and torch cannot use it")
        device = torch.device("cpu")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", rank=RANK, world_size=WORLD)
    return torch, dist, device


def env():
    """All ranks have the same versions. A rank of a machine with GPUs can use them."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    gpus = 0
    try:
        import torch
    except ImportError:
        everybody = [found]
    else:
        torch, dist, device = start()
        found |= {"torch": torch.__version__, "cuda": str(torch.version.cuda), "backend": dist.get_backend()}
        if device.type == "cuda":
            gpus = torch.cuda.device_count()
            found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
            found["gpu"] = torch.cuda.get_device_name(device)
        everybody = [None] * WORLD
        dist.all_gather_object(everybody, found)
        dist.destroy_process_group()
    for other, theirs in enumerate(everybody):
        if theirs != everybody[0]:
            fail(f"rank {other} has {theirs}, and rank 0 has {everybody[0]}")
    if RANK == 0:
        for name, value in found.items():
            print(f"{name}: {value}")
        say("ranks", WORLD)
        say("gpus", gpus)


def import_(modules):
    begun = time.perf_counter()
    for name in modules or ["torch"]:
        module = importlib.import_module(name)
        if RANK == 0:
            print(f"{name}: {getattr(module, '__version__', 'no version')} from {getattr(module, '__file__', 'nowhere')}")
    took = time.perf_counter() - begun
    if RANK == 0:
        say("import", took, "s")


def gpu():
    """The GPU computes what the CPU does, and says how fast it is."""
    import torch

    if not torch.cuda.is_available():
        fail("torch sees no GPU")
    device = torch.device("cuda", LOCAL_RANK % torch.cuda.device_count())
    torch.cuda.set_device(device)
    torch.manual_seed(0)
    a, b = torch.randn(512, 512, dtype=torch.float64), torch.randn(512, 512, dtype=torch.float64)
    wrong = (~torch.isclose((a.to(device) @ b.to(device)).cpu(), a @ b)).sum().item()
    print(f"rank {RANK}: {torch.cuda.get_device_name(device)}")
    say("nwrong", wrong)
    n = 8192
    x = torch.randn(n, n, dtype=torch.bfloat16, device=device)
    y = torch.empty_like(x)
    say("matmul", 2 * n**3 / timed(torch, device, lambda: torch.matmul(x, x, out=y), 5, 20) / 1e12, "TFLOP/s")
    source = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    say("memory", 2 * source.numel() / timed(torch, device, lambda: target.copy_(source), 5, 20) / 1e9, "GB/s")


def timed(torch, device, work, warmup, count):
    """Seconds that one call of work takes on this rank."""
    for _ in range(warmup):
        work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begun = time.perf_counter()
    for _ in range(count):
        work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - begun) / count


def collective(word):
    """Measures a collective operation as nccl-tests does, and looks at what came of it."""
    if WORLD < 2:
        fail(f"{word} needs two ranks or more, and there is one")
    torch, dist, device = start()
    size = int(os.environ.get("SCONCE_TEST_SIZE", 1 << 30 if device.type == "cuda" else 16 << 20))
    count = max(1, size // 4 // WORLD) * WORLD
    size = count * 4
    mine = torch.full((count,), float(RANK + 1), device=device)
    other = torch.empty_like(mine)
    before, after = (RANK - 1) % WORLD, (RANK + 1) % WORLD

    def all_reduce():
        dist.all_reduce(mine)

    def all_to_all():
        dist.all_to_all_single(other, mine)

    def sendrecv():
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, after), dist.P2POp(dist.irecv, other, before)]):
            work.wait()

    if word == "all-reduce":
        work, factor = all_reduce, 2 * (WORLD - 1) / WORLD
        work()
        wrong = (mine != WORLD * (WORLD + 1) / 2).sum()
        mine.zero_()  # it would grow without bound
    elif word == "all-to-all":
        work, factor = all_to_all, (WORLD - 1) / WORLD
        work()
        wrong = (other.view(WORLD, -1) != torch.arange(1, WORLD + 1, device=device).view(-1, 1)).sum()
    else:
        work, factor = sendrecv, 1.0
        work()
        wrong = (other != before + 1).sum()
    dist.all_reduce(wrong)
    warmup, rounds = (5, 20) if device.type == "cuda" else (1, 5)
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)
    slowest = torch.tensor([timed(torch, device, work, warmup, rounds)], dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    if RANK == 0:
        seconds = slowest.item()
        print(f"{word} of {size} bytes by {WORLD} ranks, {dist.get_backend()}")
        say("nwrong", wrong.item())
        say("time", seconds * 1e6, "us")
        say("algbw", size / seconds / 1e9, "GB/s")
        say("busbw", size / seconds / 1e9 * factor, "GB/s")
    dist.destroy_process_group()


def mpi_pingpong():
    sys.argv = ["mpi4py.bench", "pingpong", "-m", "1", "-n", str(4 << 20)]
    runpy.run_module("mpi4py.bench", run_name="__main__", alter_sys=True)


def main():
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    if word == "env":
        env()
    elif word == "import":
        import_(sys.argv[2:])
    elif word == "gpu":
        gpu()
    elif word in ("all-reduce", "all-to-all", "sendrecv"):
        collective(word)
    elif word == "mpi-pingpong":
        mpi_pingpong()
    else:
        sys.exit(f"there is no test {word!r}")


if __name__ == "__main__":
    main()
