# SPDX-License-Identifier: Apache-2.0
"""A rank is killed in a step: all others are told which, and go on from the last checkpoint.

What they compute from there has the bits of a run that is started from that checkpoint with that
many ranks. Started without RANK it runs both.
"""

import os
import signal
import sys
import tempfile
import time

import ranks

STEPS = 6
SAVED_AFTER = 2  # steps
KILLED_IN = 4
ROWS = 12  # of 2, 3 and 4 ranks alike
# Of every rank that is left, from the kill on. The error comes by a closed connection, in tens of
# milliseconds; a deadline would be minutes. A busy machine gets more tries.
TOLD_WITHIN_S = 1
TRIES = 3


def main_of_rank():
    import datetime
    import faulthandler

    import schemes
    import tally
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.nn.parallel import DistributedDataParallel

    import weir

    faulthandler.enable()
    folder = os.environ["WEIR_TEST_FOLDER"]
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    victim = int(os.environ.get("WEIR_TEST_VICTIM", "-1"))
    torch.set_num_threads(1)
    # Sums do not depend on which algorithm or transport a group has found to be fast.
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    store = dist.FileStore(os.path.join(folder, f"store{size}"), size)
    dist.init_process_group(
        "gloo" if "--in-place" in sys.argv else "weir",
        store=store,
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(minutes=5),
    )
    tally.install()
    kills = False

    class Killed(torch.autograd.Function):
        """In the backward pass, when the first buckets are already on their way."""

        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            if kills:
                with open(os.path.join(folder, "killed_at"), "w") as file:
                    file.write(str(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)
            return gradient

    def new_model():
        net = schemes.model(torch.float32)
        # The gradients of the last layers come before this.
        with_end = torch.nn.Sequential(net[:2], Between(), net[2:])
        return DistributedDataParallel(with_end, bucket_cap_mb=0.001)

    class Between(torch.nn.Module):
        def forward(self, x):
            return Killed.apply(x)

    def state_of(net, optimizer):
        return {"model": net.module.state_dict(), "optimizer": optimizer.state_dict()}

    checkpoint = os.path.join(folder, "checkpoint")

    def train(net, optimizer, first, last):
        nonlocal kills
        for step in range(first, last):
            kills = step == KILLED_IN and victim == rank and size == dist.get_world_size()
            inputs, targets = schemes.batch(step, ROWS, torch.float32)
            own = schemes.share([inputs, targets], dist.get_rank(), dist.get_world_size())
            optimizer.zero_grad()
            schemes.loss_of(net, *own).backward()
            optimizer.step()
            if step + 1 == SAVED_AFTER and victim >= 0:
                dcp.save(state_of(net, optimizer), checkpoint_id=checkpoint)

    def go_on_from_checkpoint():
        net = new_model()
        optimizer = schemes.optimizer_of(net)
        train(net, optimizer, 0, 1)  # other values than those of the checkpoint, and momenta
        state = state_of(net, optimizer)
        dcp.load(state, checkpoint_id=checkpoint)
        net.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        train(net, optimizer, SAVED_AFTER, STEPS)
        name = f"rank{dist.get_rank()}_after_{'loss' if victim >= 0 else 'start'}"
        torch.save(list(net.module.parameters()), os.path.join(folder, name))
        return net

    if victim >= 0:
        net = new_model()
        try:
            train(net, schemes.optimizer_of(net), 0, STEPS)
        except (dist.DistBackendError, RuntimeError) as error:
            told_at = time.time()
            assert f"rank {victim}" in str(error), f"the error does not name rank {victim}: {error}"
            with open(os.path.join(folder, "killed_at")) as file:
                seconds = told_at - float(file.read())
            with open(os.path.join(folder, f"told{rank}"), "w") as file:
                file.write(str(seconds))
            print(f"rank {rank} was told after {seconds:.3f} s: {error}".splitlines()[0])
        else:
            raise AssertionError("trained on with a rank that is dead")
        assert weir.lost_ranks() == [victim], weir.lost_ranks()
        del net
        group = weir.shrink()
        assert dist.get_world_size() == size - 1 == group.size()
        assert dist.get_rank() == rank - (rank > victim)
        ranks.forget_served()
        total = torch.ones(3)
        dist.all_reduce(total)
        assert (total == size - 1).all()
        ranks.served({"ALLREDUCE": total.nbytes})
    net = go_on_from_checkpoint()
    # Beside the objects of the checkpoint.
    tally.add("ALLREDUCE", (1 + STEPS - SAVED_AFTER) * schemes.bytes_of(net))
    for name, moved in schemes.ddp_setup(net).items():
        tally.add(name, moved)
    ranks.served()
    dist.destroy_process_group()
    return 0


def run_ranks(size, folder, options, victim):
    os.environ["WEIR_TEST_VICTIM"] = str(victim)
    started = ranks.start(size, options, folder)
    try:
        outputs = ranks.wait(started, ranks.TIMEOUT_S)
    finally:
        for rank in started:
            rank.kill()
    passed = True
    for rank, (process, output) in enumerate(zip(started, outputs)):
        wanted = -signal.SIGKILL if rank == victim else 0
        if process.returncode != wanted:
            print(f"---- rank {rank} of {size}, exit status {process.returncode}\n{output}")
            passed = False
        elif victim >= 0 and rank != victim:
            print("\n".join(line for line in output.splitlines() if "was told" in line))
    return passed


def told_in_time(size, victim, folder):
    """Whether every rank that was left heard of the loss within TOLD_WITHIN_S."""
    seconds = []
    for rank in range(size):
        if rank != victim:
            with open(os.path.join(folder, f"told{rank}")) as file:
                seconds.append(float(file.read()))
    print(f"rank {victim} of {size}: the last of the others was told after {max(seconds):.3f} s")
    return max(seconds) < TOLD_WITHIN_S


def same_bits(size, own, started):
    """Whether those that went on in `own` have the parameters of the run in `started`."""
    import torch

    for rank in range(size - 1):
        after_loss = torch.load(os.path.join(own, f"rank{rank}_after_loss"))
        after_start = torch.load(os.path.join(started, f"rank{rank}_after_start"))
        if not all(map(torch.equal, after_loss, after_start)):
            print(f"rank {rank}: other bits than those of a run of {size - 1} ranks")
            return False
    return True


def run(size, victims, options):
    """Runs that lose a rank, and one that starts without it from the checkpoint of the first."""
    with tempfile.TemporaryDirectory(prefix="weir_pytorch_") as folder:
        lost = []
        for victim in victims:
            for turn in range(TRIES):
                own = os.path.join(folder, f"without{victim}_{turn}")
                os.mkdir(own)
                if not run_ranks(size, own, options, victim):
                    return False
                lost.append((victim, own))
                if told_in_time(size, victim, own):
                    break
            else:
                print(f"rank {victim}: {TRIES} times later than {TOLD_WITHIN_S} s after its end")
                return False
        started = lost[0][1]
        if not run_ranks(size - 1, started, options, -1):
            return False
        for victim, own in lost:
            if not same_bits(size, own, started):
                return False
            print(f"rank {victim} of {size} was killed, {size - 1} went on with the same bits")
    return True


def main():
    options = ranks.arguments()
    if "RANK" in os.environ:
        return main_of_rank()
    # The last, which others wait for, and the first, which made the group.
    passed = [
        run(size, (size - 1, 0) if size > 2 else (1,), options)
        for size in (int(size) for size in options.ranks.split(","))
    ]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
