"""Says where packages come from: torch from the image, einops from the environment on top of it."""

import sys

import einops
import torch

print(f"environment {sys.prefix}")
print(f"torch  {torch.__version__} in {torch.__file__}")
print(f"einops {einops.__version__} in {einops.__file__}")
x = torch.arange(6).reshape(2, 3)
assert einops.rearrange(x, "a b -> b a").shape == (3, 2)
