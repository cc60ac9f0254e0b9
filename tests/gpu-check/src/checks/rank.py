# One rank of one: makes a communicator, asks for collectives, says what it did, waits to be ended.
import json
import os
import sys
import time

import torch
import torch.distributed as dist

ROUNDS = 500
ELEMENTS = 1 << 16

os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29531")
dist.init_process_group("nccl", rank=0, world_size=1)
tensor = torch.ones(ELEMENTS, dtype=torch.float32, device="cuda:0")
# The first call makes the communicator; the agent then needs a moment to find the library.
dist.broadcast(tensor, 0)
torch.cuda.synchronize()
time.sleep(5)
for _ in range(ROUNDS):
    dist.all_reduce(tensor)
torch.cuda.synchronize()
done = {
    "pid": os.getpid(),
    "version": ".".join(str(part) for part in torch.cuda.nccl.version()),
    "calls": ROUNDS,
    "bytes": ROUNDS * ELEMENTS * 4,
}
print(json.dumps(done), flush=True)
sys.stdin.read()
