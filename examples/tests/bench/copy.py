"""How fast this machine copies memory. Every rank prints its own number, and each must be good enough."""

import os
import time

SIZE = 64 << 20

source = os.urandom(1 << 20) * (SIZE >> 20)
target = bytearray(SIZE)
begun = time.perf_counter()
target[:] = source
took = time.perf_counter() - begun
print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}")
print(f"nwrong = {int(bytes(target) != source)}")
print(f"copy = {SIZE / took / 1e9:.3f} GB/s")
