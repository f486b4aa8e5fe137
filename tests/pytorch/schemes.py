# SPDX-License-Identifier: Apache-2.0
"""What the tests of training schemes share: a model, its training in one process, and checks."""

import ranks
import torch
import torch.distributed as dist
import torch.nn as nn

INPUTS = 16
OUTPUTS = 4
HIDDEN = 32


def model(dtype=torch.float64):
    """The same on every rank."""
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Linear(INPUTS, HIDDEN),
        nn.Tanh(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.Tanh(),
        nn.Linear(HIDDEN, OUTPUTS),
    ).to(dtype)


def batch(step, rows, dtype=torch.float64):
    """Inputs and targets of a step, the same on every rank."""
    generator = torch.Generator().manual_seed(100 + step)
    return (
        torch.randn(rows, INPUTS, generator=generator, dtype=torch.float64).to(dtype),
        torch.randn(rows, OUTPUTS, generator=generator, dtype=torch.float64).to(dtype),
    )


def share(tensors, rank, size):
    """The rows of a rank; as many for each."""
    return [tensor.chunk(size)[rank] for tensor in tensors]


def loss_of(net, inputs, targets):
    return nn.functional.mse_loss(net(inputs), targets)


def train(net, optimizer, batches):
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss_of(net, inputs, targets).backward()
        optimizer.step()


def optimizer_of(net):
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def trained_alone(batches, dtype=torch.float64):
    """The parameters after one process has trained on the whole batches."""
    net = model(dtype)
    train(net, optimizer_of(net), batches)
    return list(net.parameters())


def bytes_of(net):
    return sum(p.numel() * p.element_size() for p in net.parameters())


def whole(tensor):
    tensor = tensor.detach()
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def expect_close(found, expected, what, rtol=1e-9, atol=1e-11):
    found, expected = list(found), list(expected)
    assert len(found) == len(expected), what
    for i, (a, b) in enumerate(zip(found, expected)):
        torch.testing.assert_close(
            whole(a), whole(b), rtol=rtol, atol=atol, msg=lambda text: f"{what}, tensor {i}: {text}"
        )


def expect_served(expected, slack=0.1):
    """Weir has served exactly these operations since the last check.

    ``expected`` gives the bytes of each, met within ``slack`` of them, or None: any number.
    """
    counts = ranks.served()
    assert set(counts) == set(expected), f"{counts} instead of {expected}"
    for name, size in expected.items():
        if size is not None and not abs(counts[name].bytes - size) <= slack * size:
            raise AssertionError(f"{name}: {counts[name]}, expected {size} bytes; all: {counts}")
    return counts


def forget_served():
    """Collective. What came before, such as gathering the results to compare, is not counted."""
    dist.barrier()
    ranks.served()
