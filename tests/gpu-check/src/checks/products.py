# Matrix products of known size, type by type: says of each when it began and ended and how many it made.
import json
import sys
import time

import torch

SECONDS = float(sys.argv[1])
torch.backends.cuda.matmul.allow_tf32 = True
TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "tf32": torch.float32}

for name, of in TYPES.items():
    for size in (1024, 2048, 4096, 8192):
        a = torch.randn(size, size, device="cuda:0", dtype=of)
        b = torch.randn(size, size, device="cuda:0", dtype=of)
        out = torch.empty(size, size, device="cuda:0", dtype=of)
        for _ in range(3):
            torch.mm(a, b, out=out)
        torch.cuda.synchronize()
        # The driver's counters look back a moment.
        began, count = time.time(), 0
        while time.time() - began < SECONDS:
            for _ in range(max(1, 8192 // size) * 8):
                torch.mm(a, b, out=out)
                count += 1
            torch.cuda.synchronize()
        ended = time.time()
        done = {"of": name, "size": size, "began": began, "ended": ended, "flop": 2.0 * size**3 * count}
        print(json.dumps(done), flush=True)
