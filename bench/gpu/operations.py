"""Runs operations on the GPU and prints a digest of each result, as JSON: what has the same digests computed the same bits.

Each operation starts from the same seed, and uses nothing that is allowed to differ between two runs. With two GPUs the
collectives run between two processes; with one they run in a group of one.

    python operations.py [--only NAME] [--skip-compile] > results.json
"""

import argparse
import hashlib
import json
import os
import sys
import time
import traceback

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic cuBLAS, see torch.use_deterministic_algorithms

import torch
import torch.nn as nn
import torch.nn.functional as F

OPERATIONS = {}
device = "cuda"


def operation(function):
    OPERATIONS[function.__name__] = function
    return function


def operations(**functions):
    OPERATIONS.update(functions)


def rand(*shape, dtype=torch.float32):
    return torch.randn(*shape, device=device, dtype=torch.float32).to(dtype)


def spd(n):
    a = rand(n, n)
    return a @ a.T + n * torch.eye(n, device=device)


# cuBLAS, cuBLASLt
operations(
    matmul_float32=lambda: rand(512, 768) @ rand(768, 384),
    matmul_float64=lambda: rand(256, 256).double() @ rand(256, 256).double(),
    matmul_bfloat16=lambda: rand(1024, 1024, dtype=torch.bfloat16) @ rand(1024, 1024, dtype=torch.bfloat16),
    matmul_float16=lambda: rand(1024, 512, dtype=torch.float16) @ rand(512, 1024, dtype=torch.float16),
    matmul_complex64=lambda: torch.complex(rand(128, 128), rand(128, 128)) @ torch.complex(rand(128, 128), rand(128, 128)),
    matmul_int8=lambda: torch._int_mm(torch.randint(-8, 8, (64, 64), device=device, dtype=torch.int8), torch.randint(-8, 8, (64, 64), device=device, dtype=torch.int8)),
    batched_matmul=lambda: torch.bmm(rand(16, 64, 128), rand(16, 128, 32)),
    matrix_vector=lambda: rand(1000, 500) @ rand(500),
    linear_with_bias=lambda: F.linear(rand(256, 512), rand(128, 512), rand(128)),
    linear_gelu_bfloat16=lambda: F.gelu(F.linear(rand(256, 512, dtype=torch.bfloat16), rand(128, 512, dtype=torch.bfloat16))),
    outer_product=lambda: torch.addr(rand(100, 200), rand(100), rand(200)),
)


@operation
def matmul_tf32():
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return rand(512, 512) @ rand(512, 512)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


@operation
def matmul_float8():
    one = torch.ones((), device=device)
    a, b = rand(64, 128).to(torch.float8_e4m3fn), rand(96, 128).to(torch.float8_e4m3fn)
    return torch._scaled_mm(a, b.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


# cuDNN
operations(
    convolution_1d=lambda: F.conv1d(rand(8, 16, 200), rand(32, 16, 5), padding=2),
    convolution_2d=lambda: F.conv2d(rand(8, 32, 56, 56), rand(64, 32, 3, 3), padding=1),
    convolution_2d_bfloat16=lambda: F.conv2d(rand(8, 32, 56, 56, dtype=torch.bfloat16), rand(64, 32, 3, 3, dtype=torch.bfloat16), padding=1),
    convolution_2d_channels_last=lambda: F.conv2d(
        rand(8, 32, 56, 56, dtype=torch.float16).to(memory_format=torch.channels_last), rand(64, 32, 3, 3, dtype=torch.float16).to(memory_format=torch.channels_last)
    ),
    convolution_grouped=lambda: F.conv2d(rand(4, 32, 28, 28), rand(32, 1, 3, 3), groups=32),
    convolution_3d=lambda: F.conv3d(rand(2, 8, 16, 24, 24), rand(16, 8, 3, 3, 3)),
    convolution_transposed=lambda: F.conv_transpose2d(rand(4, 16, 14, 14), rand(16, 32, 4, 4), stride=2),
    batch_norm=lambda: F.batch_norm(rand(16, 32, 28, 28), None, None, training=True),
    max_pool=lambda: F.max_pool2d(rand(4, 16, 64, 64), 3, 2),
    average_pool=lambda: F.avg_pool2d(rand(4, 16, 64, 64), 2),
)


@operation
def convolution_backward():
    x, w = rand(4, 16, 28, 28).requires_grad_(), rand(32, 16, 3, 3).requires_grad_()
    F.conv2d(x, w, padding=1).square().sum().backward()
    return x.grad, w.grad


@operation
def lstm():
    return nn.LSTM(64, 128, num_layers=2).to(device)(rand(20, 8, 64))[0]


@operation
def gru():
    return nn.GRU(32, 64).to(device)(rand(20, 8, 32))[0]


@operation
def ctc_loss():
    scores = rand(50, 4, 20).log_softmax(2).requires_grad_()
    targets = torch.randint(1, 20, (4, 10), device="cpu", dtype=torch.int32)
    return F.ctc_loss(scores, targets, torch.full((4,), 50), torch.full((4,), 10))


# cuFFT
operations(
    fft_1d=lambda: torch.fft.fft(torch.complex(rand(32, 1024), rand(32, 1024))),
    fft_odd_length=lambda: torch.fft.fft(torch.complex(rand(8, 1009), rand(8, 1009))),
    fft_real=lambda: torch.fft.rfft(rand(32, 4096)),
    fft_inverse=lambda: torch.fft.irfft(torch.complex(rand(32, 513), rand(32, 513))),
    fft_2d=lambda: torch.fft.fft2(torch.complex(rand(4, 128, 128), rand(4, 128, 128))),
    fft_3d=lambda: torch.fft.fftn(torch.complex(rand(32, 32, 32), rand(32, 32, 32))),
    fft_float64=lambda: torch.fft.fft(torch.complex(rand(8, 2000).double(), rand(8, 2000).double())),
    stft=lambda: torch.stft(rand(2, 16000), 512, window=torch.hann_window(512, device=device), return_complex=True),
)

# cuSPARSE, cuSPARSELt


def sparse(n, m):
    return (rand(n, m) * (torch.rand(n, m, device=device) < 0.05)).to_sparse_csr()


operations(
    sparse_matmul=lambda: sparse(300, 400) @ rand(400, 64),
    sparse_vector=lambda: sparse(300, 400) @ rand(400),
    sparse_sparse=lambda: (sparse(200, 200) @ sparse(200, 200)).to_dense(),
    sparse_coo=lambda: torch.sparse.mm(sparse(200, 300).to_sparse_coo(), rand(300, 20)),
    sparse_to_dense=lambda: sparse(300, 400).to_dense(),
)

# cuSOLVER, MAGMA
operations(
    cholesky=lambda: torch.linalg.cholesky(spd(200)),
    solve=lambda: torch.linalg.solve(spd(200), rand(200, 5)),
    inverse=lambda: torch.linalg.inv(spd(150)),
    determinant=lambda: torch.linalg.slogdet(spd(100)),
    lu=lambda: torch.linalg.lu_factor(spd(150))[0],
    qr=lambda: torch.linalg.qr(rand(200, 100))[1],
    svd_values=lambda: torch.linalg.svdvals(rand(100, 60)),
    eigenvalues_symmetric=lambda: torch.linalg.eigvalsh(spd(120)),
    least_squares=lambda: torch.linalg.lstsq(rand(200, 50), rand(200, 3)).solution,
    triangular_solve=lambda: torch.linalg.solve_triangular(torch.linalg.cholesky(spd(100)), rand(100, 4), upper=False),
)

# attention
for backend in ("MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION"):

    def attention(backend=backend):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        q, k, v = (rand(2, 8, 256, 64, dtype=torch.bfloat16) for _ in range(3))
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    OPERATIONS["attention_" + backend.lower().replace("_attention", "")] = attention


@operation
def transformer_layer():
    return nn.TransformerEncoderLayer(128, 4, dropout=0.0, batch_first=True).to(device)(rand(4, 64, 128))


# sort, search, reductions, indexing
operations(
    sort=lambda: torch.sort(rand(100_000)),
    sort_rows=lambda: torch.sort(rand(500, 300), dim=1, stable=True),
    argsort_int64=lambda: torch.argsort(torch.randperm(50_000, device=device)),
    topk=lambda: torch.topk(rand(64, 5000), 10),
    unique=lambda: torch.unique(torch.randint(0, 500, (20_000,), device=device)),
    searchsorted=lambda: torch.searchsorted(torch.sort(rand(1000))[0], rand(5000)),
    median=lambda: rand(99, 301).median(dim=1),
    sum=lambda: rand(1000, 1000).sum(),
    mean_bfloat16=lambda: rand(1000, 1000, dtype=torch.bfloat16).mean(0),
    variance=lambda: rand(300, 400).var(1),
    norm=lambda: torch.linalg.vector_norm(rand(300, 400), 3, dim=0),
    logsumexp=lambda: rand(300, 400).logsumexp(1),
    argmax=lambda: rand(300, 400).argmax(1),
    cumulative_max=lambda: rand(100, 500).cummax(1),
    gather=lambda: rand(100, 200).gather(1, torch.randint(0, 200, (100, 50), device=device)),
    index_select=lambda: rand(100, 200).index_select(0, torch.randint(0, 100, (300,), device=device)),
    scatter=lambda: torch.zeros(100, 200, device=device).scatter(1, torch.argsort(rand(100, 200), 1), rand(100, 200)),
    nonzero=lambda: (rand(300, 300) > 1).nonzero(),
    masked_select=lambda: rand(300, 300).masked_select(torch.ones(300, 300, device=device).bernoulli() > 0),
    embedding=lambda: F.embedding(torch.randint(0, 1000, (32, 16), device=device), rand(1000, 64)),
)

# element by element, losses, random numbers
operations(
    softmax=lambda: F.softmax(rand(128, 1000), 1),
    log_softmax_float16=lambda: F.log_softmax(rand(128, 1000, dtype=torch.float16), 1),
    layer_norm=lambda: F.layer_norm(rand(128, 512), (512,)),
    rms_norm=lambda: F.rms_norm(rand(128, 512), (512,)),
    group_norm=lambda: F.group_norm(rand(8, 32, 16, 16), 4),
    gelu=lambda: F.gelu(rand(1000, 100)),
    silu=lambda: F.silu(rand(1000, 100)),
    special=lambda: torch.special.erfinv(torch.rand(10_000, device=device)) + torch.lgamma(torch.rand(10_000, device=device) + 1),
    trigonometric=lambda: torch.sin(rand(10_000)) * torch.atan2(rand(10_000), rand(10_000)),
    cross_entropy=lambda: F.cross_entropy(rand(256, 100), torch.randint(0, 100, (256,), device=device)),
    interpolate=lambda: F.interpolate(rand(2, 3, 32, 32), scale_factor=2, mode="bilinear"),
    grid_sample=lambda: F.grid_sample(rand(2, 3, 32, 32), torch.rand(2, 20, 20, 2, device=device) * 2 - 1, align_corners=False),
    dropout=lambda: F.dropout(rand(1000, 100), 0.3),
    normal=lambda: torch.empty(10_000, device=device).normal_(),
    exponential=lambda: torch.empty(10_000, device=device).exponential_(),
    permutation=lambda: torch.randperm(10_000, device=device),
    bitwise=lambda: torch.randint(0, 2**31, (10_000,), device=device) ^ 0x5555,
    copy_to_host=lambda: rand(1000, 1000).cpu(),
)


@operation
def training_steps():
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    x, y = rand(32, 64), torch.randint(0, 10, (32,), device=device)
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


@operation
def cuda_graph():
    x, w = rand(64, 64), rand(64, 64)
    for _ in range(3):
        x @ w
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x @ w).relu()
    graph.replay()
    torch.cuda.synchronize()
    return y


@operation
def compiled():
    import torch._inductor.config as inductor

    # Without it Inductor times several kernels for a reduction and takes the fastest of this run, which may add up in another order.
    inductor.deterministic = True

    def f(x, w):
        return F.gelu(x @ w).softmax(-1).sum(0)

    return torch.compile(f)(rand(256, 128), rand(128, 64))


def collectives(rank, size, port):
    """Yields a name and a result for each collective of NCCL."""
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size, device_id=torch.device("cuda", rank))
    torch.manual_seed(rank)
    x = torch.randn(1 << 20, device="cuda")
    for name, reduce in (("sum", dist.ReduceOp.SUM), ("max", dist.ReduceOp.MAX)):
        y = x.clone()
        dist.all_reduce(y, reduce)
        yield "nccl_all_reduce_" + name, y
    y = x.to(torch.bfloat16)
    dist.all_reduce(y)
    yield "nccl_all_reduce_bfloat16", y
    y = x.clone()
    dist.broadcast(y, 0)
    yield "nccl_broadcast", y
    y = torch.empty(size << 20, device="cuda")
    dist.all_gather_into_tensor(y, x)
    yield "nccl_all_gather", y
    y = torch.empty((1 << 20) // size, device="cuda")
    dist.reduce_scatter_tensor(y, x)
    yield "nccl_reduce_scatter", y
    y = torch.empty_like(x)
    dist.all_to_all_single(y, x)
    yield "nccl_all_to_all", y
    dist.destroy_process_group()


def collect(rank, size, port, out):
    results = {f"{name}_rank{rank}": digest(y) for name, y in collectives(rank, size, port)}
    with open(f"{out}.{rank}", "w") as f:
        json.dump(results, f)


def run_collectives():
    import socket
    import tempfile

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    size = min(2, torch.cuda.device_count())
    with tempfile.TemporaryDirectory() as scratch:
        out = os.path.join(scratch, "results")
        torch.multiprocessing.spawn(collect, (size, port, out), nprocs=size)
        results = {}
        for rank in range(size):
            with open(f"{out}.{rank}") as f:
                results.update(json.load(f))
    return results


def digest(result):
    h = hashlib.sha256()
    tensors = result if isinstance(result, (tuple, list)) else [result]
    for t in tensors:
        t = t.detach().cpu().contiguous()
        h.update(f"{t.dtype} {tuple(t.shape)} ".encode())
        h.update(t.flatten().view(torch.uint8).numpy().tobytes())
    return h.hexdigest()[:32]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only")
    parser.add_argument("--skip-compile", action="store_true")
    args = parser.parse_args()
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    results, failed, started = {}, {}, time.time()
    for name, function in OPERATIONS.items():
        if args.only and name != args.only or args.skip_compile and name == "compiled":
            continue
        torch.manual_seed(0)
        try:
            results[name] = digest(function())
        except Exception as e:
            failed[name] = f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"
            if "kernel image" in str(e) or "CUDA error" in str(e) or "no kernel" in str(e):
                break  # the context is lost
    if not args.only and not failed:
        try:
            results.update(run_collectives())
        except Exception as e:
            failed["collectives"] = f"{type(e).__name__}: {e}"
            traceback.print_exc()
    libraries = sorted({line.split()[-1] for line in open("/proc/self/maps") if ".so" in line and "cu" in os.path.basename(line.split()[-1])})
    json.dump({
        "torch": torch.__version__, "cuda": torch.version.cuda, "device": torch.cuda.get_device_name(), "gpus": torch.cuda.device_count(),
        "loading": os.environ.get("CUDA_MODULE_LOADING", ""), "seconds": round(time.time() - started, 1), "results": results, "failed": failed,
        "libraries": libraries,
    }, sys.stdout, indent=1)
    print()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
