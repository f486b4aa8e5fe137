# SPDX-License-Identifier: Apache-2.0
"""What the tests of training schemes share: a model, its training in one process, and checks."""

import ranks
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
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


def ddp_rebuilt(net):
    """The bytes that DistributedDataParallel sends after the first step: which parameters are in
    which bucket."""
    told = net._get_ddp_logging_data().get("rebuilt_bucket_sizes", "")
    return 4 * (len(list(net.parameters())) + 1 + len(told.split(","))) if told else 0


def ddp_setup(net):
    """The bytes of what DistributedDataParallel does once: it compares the number of parameters,
    then sends their sizes and strides and the parameters themselves; and ``ddp_rebuilt``."""
    numbers = sum(2 * p.dim() for p in net.parameters())
    return {"BROADCAST": bytes_of(net) + 8 * numbers + ddp_rebuilt(net), "ALLGATHER": 8}


def bytes_of_object(value):
    """As PyTorch's collectives of objects send it."""
    return int(c10d._object_to_tensor(value, torch.device("cpu"), dist.group.WORLD)[1])


class Objects:
    """What passes through PyTorch's collectives of objects within it, and the bytes of the tensors
    that this takes: the lengths first, then the objects, each as long as the longest."""

    def __enter__(self):
        self.own = []  # of each call: its name, how many objects, and bytes
        self.originals = {}
        for name, place in (
            ("gather_object", 0),
            ("all_gather_object", 1),
            ("broadcast_object_list", 0),
            ("scatter_object_list", 1),
        ):
            self.originals[name] = getattr(dist, name)
            setattr(dist, name, self.recorded(name, place))
        return self

    def recorded(self, name, place):
        original = self.originals[name]
        keyword = {
            "gather_object": "obj",
            "all_gather_object": "obj",
            "broadcast_object_list": "object_list",
            "scatter_object_list": "scatter_object_input_list",
        }[name]

        def call(*positional, **named):
            passed = named[keyword] if keyword in named else positional[place]
            if name.endswith("_list"):
                sizes = [bytes_of_object(one) for one in passed or ()]
                total = sum(sizes) if name == "broadcast_object_list" else max(sizes, default=0)
                self.own.append((name, len(sizes), total))
            else:
                self.own.append((name, 1, bytes_of_object(passed)))
            return original(*positional, **named)

        return call

    def __exit__(self, *_):
        for name, original in self.originals.items():
            setattr(dist, name, original)

    def expected(self):
        """By operation of Weir's; collective."""
        of_ranks = [None] * dist.get_world_size()
        dist.all_gather_object(of_ranks, self.own)
        counted = {}

        def add(name, size):
            counted[name] = counted.get(name, 0) + size

        for calls in zip(*of_ranks, strict=True):
            names = {name for name, _, _ in calls}
            assert len(names) == 1, calls
            # Of a broadcast or scatter, the one who sends has the most.
            longest = max(total for _, _, total in calls)
            name = names.pop()
            if name == "broadcast_object_list":
                add("BROADCAST", 8 * calls[0][1] + longest)
            elif name == "scatter_object_list":
                add("BROADCAST", 8)
                add("SCATTER", longest + 8)
            else:
                add("ALLGATHER", 8)
                add("GATHER" if name == "gather_object" else "ALLGATHER", longest)
        return counted


def forget_served():
    """Collective. What came before, such as gathering the results to compare, is not counted."""
    dist.barrier()
    ranks.forget_served()
