"""The Flower client. A module of its own, because Ray actors must be able to import it."""

import os
from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from benchmarks.bundle import Bundle

PATH = "BENCHMARK_BUNDLE"
"""The environment variable with the path of the bundle."""

app = ClientApp()


@cache
def _loaded() -> tuple[Bundle, Tensor]:
    """Return the bundle and its inputs, loaded once per actor."""
    torch.set_num_threads(1)
    bundle = Bundle.load(os.environ[PATH])
    inputs = bundle.inputs
    if bundle.convolutional:
        bundle.module.to(memory_format=torch.channels_last)
        inputs = inputs.flatten(0, 1).to(memory_format=torch.channels_last).unflatten(0, bundle.targets.shape)
    return bundle, inputs


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model on the client's samples."""
    bundle, all_inputs = _loaded()
    module = bundle.module
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    client = int(context.node_config["partition-id"])
    inputs, targets = all_inputs[client], bundle.targets[client]
    optimiser = torch.optim.SGD(module.parameters(), lr=bundle.lr, weight_decay=bundle.weight_decay, fused=True)
    for batch in torch.randperm(len(targets)).split(bundle.batch):
        optimiser.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(module(inputs[batch]), targets[batch]).backward()
        optimiser.step()
    content = RecordDict(
        {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": len(targets)})}
    )
    return Message(content=content, reply_to=message)
