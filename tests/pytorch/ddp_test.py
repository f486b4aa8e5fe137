# SPDX-License-Identifier: Apache-2.0
"""Data parallel training against one process: a server with workers, DistributedDataParallel."""

import ranks
import schemes
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

STEPS = 4
ROWS = 8
BUCKET_MB = 0.0005  # the model has 14 kB of parameters


def batches():
    return [schemes.batch(step, ROWS) for step in range(STEPS)]


def own_batches(rank, size):
    return [schemes.share(whole, rank, size) for whole in batches()]


def test_server_and_workers(rank, size):
    net = schemes.model()
    parameters = list(net.parameters())
    workers = size - 1
    used = [schemes.batch(step, 12) for step in range(STEPS)]
    optimizer = schemes.optimizer_of(net)
    for step in range(STEPS):
        for parameter in parameters:
            dist.broadcast(parameter.data, 0)
        optimizer.zero_grad()
        if rank == 0:
            for parameter in parameters:
                parameter.grad = torch.zeros_like(parameter)
            # In the order in which they come; the tag says which parameter it is.
            for tag, parameter in enumerate(parameters):
                for _ in range(workers):
                    received = torch.empty_like(parameter)
                    dist.recv(received, tag=tag)
                    parameter.grad += received / workers
            optimizer.step()
        else:
            schemes.loss_of(net, *schemes.share(used[step], rank - 1, workers)).backward()
            for work in [
                dist.isend(parameter.grad, 0, tag=tag) for tag, parameter in enumerate(parameters)
            ]:
                work.wait()
    for parameter in parameters:
        dist.broadcast(parameter.data, 0)
    schemes.expect_close(parameters, schemes.trained_alone(used), "server and workers")
    size_of = schemes.bytes_of(net)
    expected = {"BROADCAST": (STEPS + 1) * size_of}
    if rank == 0:
        expected["RECVANYSOURCE"] = STEPS * workers * size_of
    else:
        expected["SEND"] = STEPS * size_of
    ranks.served(expected)


def wrapped(**options):
    schemes.forget_served()
    return DistributedDataParallel(schemes.model(), **options)


def test_ddp_reduces_buckets_during_the_backward_pass(rank, size):
    net = wrapped(bucket_cap_mb=BUCKET_MB)
    served_before_the_last_gradient = []

    def served():
        import weir

        return weir.operation_counts()["ALLREDUCE"].calls

    def at_the_last_gradient(_):
        served_before_the_last_gradient.append(served())

    optimizer = schemes.optimizer_of(net)
    own = own_batches(rank, size)
    schemes.train(net, optimizer, own[:1])
    # The backward pass comes to the first layer last.
    net.module[0].weight.register_hook(at_the_last_gradient)
    for inputs_and_targets in own[1:]:
        before = served()
        schemes.train(net, optimizer, [inputs_and_targets])
        assert served_before_the_last_gradient[-1] > before, "no bucket before the pass ended"
    assert len(served_before_the_last_gradient) == STEPS - 1
    schemes.expect_close(net.parameters(), schemes.trained_alone(batches()), "DDP")
    counts = ranks.served(
        {"ALLREDUCE": STEPS * schemes.bytes_of(net), **schemes.ddp_setup(net)}
    )
    assert counts["ALLREDUCE"].calls >= 3 * (STEPS - 1), counts


def test_ddp_with_one_bucket_that_is_the_gradients(rank, size):
    net = wrapped(gradient_as_bucket_view=True)
    schemes.train(net, schemes.optimizer_of(net), own_batches(rank, size))
    schemes.expect_close(net.parameters(), schemes.trained_alone(batches()), "bucket view")
    # In Gloo's place PyTorch reads a field of ProcessGroupGloo that Weir's backend must have too.
    assert net._get_ddp_logging_data().get("gloo_num_threads", 2) == 2
    ranks.served(
        {"ALLREDUCE": STEPS * schemes.bytes_of(net), **schemes.ddp_setup(net)}
    )


def test_ddp_no_sync(rank, size):
    net = wrapped(bucket_cap_mb=BUCKET_MB)
    optimizer = schemes.optimizer_of(net)
    for step in range(STEPS):
        first, second = (schemes.batch(10 * step + i, ROWS) for i in range(2))
        optimizer.zero_grad()
        with net.no_sync():
            (schemes.loss_of(net, *schemes.share(first, rank, size)) / 2).backward()
        (schemes.loss_of(net, *schemes.share(second, rank, size)) / 2).backward()
        optimizer.step()
    together = [
        [torch.cat(pair) for pair in zip(*(schemes.batch(10 * step + i, ROWS) for i in range(2)))]
        for step in range(STEPS)
    ]
    schemes.expect_close(net.parameters(), schemes.trained_alone(together), "no_sync")
    ranks.served(
        {"ALLREDUCE": STEPS * schemes.bytes_of(net), **schemes.ddp_setup(net)}
    )


def joined(net, steps):
    """The least and the most that is summed with Join: the gradients, and in each step a few words
    on who takes part, which are PyTorch's own matter."""
    whole = schemes.bytes_of(net)
    return steps * whole, steps * (whole + 64) + 64


def joined_setup(net):
    """Likewise; at the end those who have done most steps send the parameters to all."""
    setup, whole = schemes.ddp_setup(net), schemes.bytes_of(net)
    return {**setup, "BROADCAST": (setup["BROADCAST"], setup["BROADCAST"] + whole + 256)}


def test_ddp_uneven_inputs(rank, size):
    for divide_by_initial in (True, False):
        net = wrapped(bucket_cap_mb=BUCKET_MB)
        optimizer = schemes.optimizer_of(net)
        with net.join(divide_by_initial_world_size=divide_by_initial):
            # Rank r has 2 + r batches.
            schemes.train(net, optimizer, own_batches(rank, size)[:1] * (2 + rank))
        reference = schemes.model()
        optimizer = schemes.optimizer_of(reference)
        for step in range(2 + size - 1):
            active = [r for r in range(size) if step < 2 + r]
            optimizer.zero_grad()
            for r in active:
                loss = schemes.loss_of(reference, *own_batches(r, size)[0])
                (loss / (size if divide_by_initial else len(active))).backward()
            optimizer.step()
        schemes.expect_close(net.parameters(), reference.parameters(), "uneven inputs")
        steps = 2 + size - 1
        ranks.served({"ALLREDUCE": joined(net, steps), **joined_setup(net)})


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = schemes.model()
        self.heads = nn.ModuleList(
            nn.Linear(schemes.OUTPUTS, schemes.OUTPUTS).double() for _ in range(2)
        )

    def forward(self, inputs, head):
        return self.heads[head](self.body(inputs))


def test_ddp_finds_unused_parameters(rank, size):
    def head_of(r, step):
        # At first all ranks use one head, then each another.
        return 0 if step == 0 else (r + step) % 2

    schemes.forget_served()
    net = DistributedDataParallel(TwoHeads(), bucket_cap_mb=BUCKET_MB, find_unused_parameters=True)
    reference = TwoHeads()
    plain = {"lr": 0.1}
    optimizer = torch.optim.SGD(net.parameters(), **plain)
    alone = torch.optim.SGD(reference.parameters(), **plain)
    for step in range(STEPS):
        inputs, targets = own_batches(rank, size)[step]
        optimizer.zero_grad()
        nn.functional.mse_loss(net(inputs, head_of(rank, step)), targets).backward()
        if step == 0:
            assert net.module.heads[1].weight.grad is None
        optimizer.step()
        alone.zero_grad()
        for r in range(size):
            inputs, targets = own_batches(r, size)[step]
            loss = nn.functional.mse_loss(reference(inputs, head_of(r, step)), targets)
            (loss / size).backward()
        alone.step()
    schemes.expect_close(net.parameters(), reference.parameters(), "unused parameters")
    # With the gradients it sums, as int32, which parameters have been used.
    used = 4 * len(list(net.parameters()))
    ranks.served(
        {"ALLREDUCE": STEPS * (schemes.bytes_of(net) + used), **schemes.ddp_setup(net)}
    )


def test_ddp_hooks_in_python(rank, size):
    calls = []

    def mean(group, bucket):
        calls.append(bucket.index())
        tensor = bucket.buffer().div_(size)
        future = dist.all_reduce(tensor, group=group, async_op=True).get_future()

        def of_python(finished):
            return finished.value()[0]

        return future.then(of_python)

    net = wrapped(bucket_cap_mb=BUCKET_MB)
    net.register_comm_hook(dist.group.WORLD, mean)
    schemes.train(net, schemes.optimizer_of(net), own_batches(rank, size))
    assert len(calls) >= 3 * (STEPS - 1)
    schemes.expect_close(net.parameters(), schemes.trained_alone(batches()), "a hook in Python")
    ranks.served(
        {"ALLREDUCE": STEPS * schemes.bytes_of(net), **schemes.ddp_setup(net)}
    )
    net = wrapped(bucket_cap_mb=BUCKET_MB)
    net.register_comm_hook(dist.group.WORLD, default_hooks.fp16_compress_hook)
    schemes.train(net, schemes.optimizer_of(net), own_batches(rank, size))
    schemes.expect_close(
        net.parameters(), schemes.trained_alone(batches()), "fp16_compress_hook", 1e-2, 2e-3
    )
    # A fourth of the bytes: float64 goes as float16.
    ranks.served(
        {"ALLREDUCE": STEPS * schemes.bytes_of(net) // 4, **schemes.ddp_setup(net)}
    )


class Recomputed(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = schemes.model()

    def forward(self, inputs):
        return checkpoint(self.net, inputs, use_reentrant=True)


def test_ddp_static_graph_with_recomputation(rank, size):
    schemes.forget_served()
    net = DistributedDataParallel(Recomputed(), bucket_cap_mb=BUCKET_MB, static_graph=True)
    own = own_batches(rank, size)
    for inputs, _ in own:
        inputs.requires_grad_()
    schemes.train(net, schemes.optimizer_of(net), own)
    schemes.expect_close(net.parameters(), schemes.trained_alone(batches()), "static graph")
    # In the first step also, as int32, which parameters are used.
    used = 4 * len(list(net.parameters()))
    ranks.served({"ALLREDUCE": STEPS * schemes.bytes_of(net) + used, **schemes.ddp_setup(net)})


def test_the_sharded_optimizer(rank, size):
    net = wrapped(bucket_cap_mb=BUCKET_MB)
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, lr=0.01)
    schemes.train(net, optimizer, own_batches(rank, size))
    reference = schemes.model()
    schemes.train(reference, torch.optim.AdamW(reference.parameters(), lr=0.01), batches())
    schemes.expect_close(net.parameters(), reference.parameters(), "ZeroRedundancyOptimizer")
    # Each rank sends the parameters that it has updated to the others.
    setup = schemes.ddp_setup(net)
    setup["BROADCAST"] += STEPS * schemes.bytes_of(net)
    ranks.served({"ALLREDUCE": STEPS * schemes.bytes_of(net), **setup})


def test_join_of_model_and_optimizer(rank, size):
    net = wrapped(bucket_cap_mb=BUCKET_MB)
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.1)
    with Join([net, optimizer]):
        schemes.train(net, optimizer, own_batches(rank, size)[:1] * (1 + rank))
    setup = joined_setup(net)
    least, most = setup["BROADCAST"]
    of_optimizer = size * schemes.bytes_of(net)
    setup["BROADCAST"] = least + of_optimizer, most + of_optimizer
    ranks.served({"ALLREDUCE": joined(net, size), **setup})
    flat = torch.cat([p.detach().flatten() for p in net.parameters()])
    lowest, highest = flat.clone(), flat.clone()
    dist.all_reduce(lowest, dist.ReduceOp.MIN)
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    assert torch.equal(lowest, highest), "the ranks have different parameters"
    ranks.served()


ranks.main(__name__)
