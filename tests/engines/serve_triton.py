"""A real Triton with a model that answers and one that fails, on its usual ports."""

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


@batch
def identity(x):
    return {"y": x}


def failing(requests):
    raise RuntimeError("as it should")


def numbers(name):
    return [Tensor(name=name, dtype=np.float32, shape=(-1,))]


with Triton(config=TritonConfig(metrics_config=["summary_latencies=true"])) as triton:
    for name, serve in (("identity", identity), ("failing", failing)):
        config = ModelConfig(max_batch_size=16, batcher=DynamicBatcher(max_queue_delay_microseconds=2000))
        triton.bind(name, serve, inputs=numbers("x"), outputs=numbers("y"), config=config)
    triton.serve()
