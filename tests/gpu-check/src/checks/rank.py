# A rank (arguments: which, of how many) on the first device: makes a communicator, asks for collectives, says what it did, waits to be ended.
import json
import os
import sys
import time

import torch
import torch.distributed as dist

ROUNDS = 500
ELEMENTS = 1 << 16

os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
RANK, RANKS = int(sys.argv[1]), int(sys.argv[2])
os.environ.setdefault("MASTER_PORT", str(29530 + RANKS))
dist.init_process_group("nccl", rank=RANK, world_size=RANKS)
tensor = torch.ones(ELEMENTS, dtype=torch.float32, device="cuda:0")
# The first call makes the communicator; the agent then needs a moment to find the library.
dist.broadcast(tensor, 0)
torch.cuda.synchronize()
time.sleep(5 + 2 * RANK)
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
