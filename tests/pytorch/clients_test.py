# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's ZeRO, the Hugging Face Trainer, Accelerate, and Megatron-core's tensor parallel.

Each function is left out where its package is not installed (`tools/pytorch --clients`), and the
package is named; exit status 77 where none is. Trainer and Accelerate know the backends of PyTorch
by name: they run in Gloo's place.
"""

import importlib.util
import os
import sys
import tempfile

import ranks
import schemes
import tally
import torch
import torch.distributed as dist
import torch.nn as nn

STEPS = 3
ROWS = 8


def has(package):
    return importlib.util.find_spec(package) is not None


def in_place():
    return "--in-place" in sys.argv


class GroupsOfTwo:
    """What DeepSpeed takes as ``mpu``: pairs of ranks are data-parallel, each with data of its own,
    in groups that the program has made; the others of a rank hold other parts of the model."""

    def __init__(self, rank, size):
        self.others = size // 2
        self.data_rank, self.model_rank = divmod(rank, self.others)
        pairs = [[i, i + self.others] for i in range(self.others)]
        parts = [[i * self.others + j for j in range(self.others)] for i in range(2)]
        self.data_ranks = pairs[self.model_rank]
        self.data = [dist.new_group(ranks) for ranks in pairs][self.model_rank]
        self.model = [dist.new_group(ranks) for ranks in parts][self.data_rank]

    def get_data_parallel_group(self):
        return self.data

    def get_data_parallel_group_ranks(self):
        return self.data_ranks

    def get_data_parallel_rank(self):
        return self.data_rank

    def get_data_parallel_world_size(self):
        return 2

    def get_model_parallel_group(self):
        return self.model

    def get_model_parallel_rank(self):
        return self.model_rank

    def get_model_parallel_world_size(self):
        return self.others


def numbers_of(groups):
    """How many collectives the world, and the groups of the program, have had so far."""
    used = [dist.group.WORLD] + ([] if groups is None else [groups.data, groups.model])
    backends = [group._get_backend(torch.device("cpu")) for group in used]
    return [backend._get_sequence_number_for_group() for backend in backends]


def expect_in_groups(before, groups):
    """Gradients and parameters have gone through the group of the program."""
    import weir

    if groups is None:
        return
    world, data, model = (now - then for now, then in zip(numbers_of(groups), before))
    counts = weir.operation_counts()
    # ZeRO 3 compares in the world the order in which its ranks use parameters.
    others = counts["BROADCAST"].calls if "BROADCAST" in counts else 0
    assert world == 1 + others, (world, counts)  # 1: the barrier of forget_served
    assert data == sum(count.calls for count in counts.values()) - others - model, (data, counts)
    assert model <= STEPS, model  # the norm


def deepspeed_stage(rank, size, stage, groups=None):
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    # It would compile its all-reduce over shared memory now.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo" if in_place() else "weir")
    share, of, data = (rank, size, 0)
    if groups is not None:
        share, of, data = groups.data_rank, 2, 10 * groups.model_rank
    net = schemes.model(torch.float32)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    config = {
        "train_micro_batch_size_per_gpu": ROWS // of,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10**9,
    }
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config, mpu=groups)
    numbers = numbers_of(groups)
    schemes.forget_served()
    losses = []
    for step in range(STEPS):
        batch = schemes.batch(data + step, ROWS, torch.float32)
        inputs, targets = schemes.share(batch, share, of)
        loss = schemes.loss_of(engine, inputs, targets)
        engine.backward(loss)
        engine.step()
        losses.append(loss.detach())
    expect_in_groups(numbers, groups)
    counts = ranks.served()
    whole = schemes.bytes_of(schemes.model(torch.float32))
    if stage < 3:
        assert counts["_ALLGATHER_BASE"].bytes == STEPS * whole // of, counts
    else:
        assert counts["_REDUCE_SCATTER_BASE"].bytes == STEPS * whole, counts
    with deepspeed.zero.GatheredParameters(list(net.parameters()), enabled=stage == 3):
        found = [parameter.detach().clone() for parameter in net.parameters()]
    reference = schemes.model(torch.float32)
    schemes.train(
        reference,
        torch.optim.Adam(reference.parameters(), lr=0.01),
        [schemes.batch(data + step, ROWS, torch.float32) for step in range(STEPS)],
    )
    schemes.expect_close(found, reference.parameters(), f"ZeRO {stage}", 1e-4, 1e-5)
    engine.destroy()
    schemes.forget_served()


if has("deepspeed"):

    def test_deepspeed_zero_1(rank, size):
        deepspeed_stage(rank, size, 1)

    def test_deepspeed_zero_2(rank, size):
        deepspeed_stage(rank, size, 2)

    def test_deepspeed_zero_3(rank, size):
        deepspeed_stage(rank, size, 3)

    def test_deepspeed_in_groups_of_the_program(rank, size):
        for stage in (1, 2, 3):
            deepspeed_stage(rank, size, stage, GroupsOfTwo(rank, size))


class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.inputs, self.targets = schemes.batch(0, 4 * ROWS, torch.float32)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return {"inputs": self.inputs[index], "labels": self.targets[index]}


class WithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = schemes.model(torch.float32)

    def forward(self, inputs, labels=None):
        outputs = self.net(inputs)
        return {"loss": nn.functional.mse_loss(outputs, labels), "logits": outputs}


def reference_of_rows():
    """All rows in order, one batch a step, by plain SGD."""
    data, net = Rows(), WithLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for first in range(0, len(data), ROWS):
        optimizer.zero_grad()
        batch = slice(first, first + ROWS)
        net(data.inputs[batch], data.targets[batch])["loss"].backward()
        optimizer.step()
    return net


if has("accelerate") and in_place():

    def test_accelerate(rank, size):
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        assert accelerator.num_processes == size, accelerator.state
        net = WithLoss()
        loader = torch.utils.data.DataLoader(Rows(), batch_size=ROWS // size)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
        schemes.forget_served()
        for batch in loader:
            optimizer.zero_grad()
            accelerator.backward(net(**batch)["loss"])
            optimizer.step()
        # The model was wrapped before.
        rebuilt = schemes.ddp_rebuilt(net)
        ranks.served({"ALLREDUCE": 4 * schemes.bytes_of(net), "BROADCAST": rebuilt})
        schemes.expect_close(
            net.parameters(), reference_of_rows().parameters(), "Accelerate", 1e-4, 1e-5
        )
        total = accelerator.reduce(torch.full((3,), float(rank)), reduction="sum")
        assert (total == size * (size - 1) / 2).all()
        assert len(accelerator.gather_for_metrics(torch.ones(2))) == 2 * size
        schemes.forget_served()


if has("transformers") and has("accelerate") and in_place():

    def test_trainer(rank, size):
        from transformers import Trainer, TrainingArguments

        class InOrder(Trainer):
            def _get_train_sampler(self, *_):
                return torch.utils.data.SequentialSampler(self.train_dataset)

        net = WithLoss()
        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                output_dir=folder,
                use_cpu=True,
                ddp_backend="gloo",
                per_device_train_batch_size=ROWS // size,
                num_train_epochs=1,
                learning_rate=0.1,
                lr_scheduler_type="constant",
                optim="sgd",
                max_grad_norm=0.0,
                save_strategy="no",
                logging_strategy="no",
                report_to="none",
                disable_tqdm=True,
            )
            trainer = InOrder(model=net, args=arguments, train_dataset=Rows())
            schemes.forget_served()
            trainer.train()
        # It asks for unused parameters: besides gradients, 4 bytes of each parameter are summed.
        used = 4 * len(list(net.parameters()))
        tally.add("ALLREDUCE", 4 * (schemes.bytes_of(net) + used))
        for name, moved in schemes.ddp_setup(trainer.model_wrapped).items():
            tally.add(name, moved)
        ranks.served()
        schemes.expect_close(
            net.parameters(), reference_of_rows().parameters(), "Trainer", 1e-4, 1e-5
        )
        schemes.forget_served()


if has("megatron"):

    def test_megatron_tensor_parallel(rank, size):
        from megatron.core import ModelParallelConfig, parallel_state
        from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear

        parallel_state.initialize_model_parallel(tensor_model_parallel_size=size)
        config = ModelParallelConfig(
            tensor_model_parallel_size=size,
            params_dtype=torch.float64,
            use_cpu_initialization=True,
            perform_initialization=False,
        )
        options = {"config": config, "bias": True, "init_method": nn.init.zeros_}
        columns = ColumnParallelLinear(16, 32, gather_output=False, **options)
        rows = RowParallelLinear(32, 16, input_is_parallel=True, skip_bias_add=False, **options)
        torch.manual_seed(31)
        up, down = nn.Linear(16, 32).double(), nn.Linear(32, 16).double()
        with torch.no_grad():
            columns.weight.copy_(up.weight.chunk(size, 0)[rank])
            columns.bias.copy_(up.bias.chunk(size)[rank])
            rows.weight.copy_(down.weight.chunk(size, 1)[rank])
            rows.bias.copy_(down.bias)
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(6, 16, generator=generator, dtype=torch.float64)
        alone, own = x.clone().requires_grad_(), x.clone().requires_grad_()
        expected = down(torch.tanh(up(alone)))
        expected.square().sum().backward()
        schemes.forget_served()
        found = rows(torch.tanh(columns(own)[0]))[0]
        found.square().sum().backward()
        ranks.served({"ALLREDUCE": 2 * x.nbytes})
        schemes.expect_close([found], [expected], "Megatron's layers")
        schemes.expect_close([own.grad], [alone.grad], "gradient of the input")
        schemes.expect_close(
            [columns.weight.grad, rows.weight.grad],
            [up.weight.grad.chunk(size, 0)[rank], down.weight.grad.chunk(size, 1)[rank]],
            "gradients of Megatron's layers",
        )
        parallel_state.destroy_model_parallel()


PACKAGES = ("deepspeed", "accelerate", "transformers", "megatron")

if __name__ == "__main__" and "RANK" not in os.environ:
    missing = [package for package in PACKAGES if not has(package)]
    for package in missing:
        print(f"LEFT OUT: {package} is not installed (tools/pytorch --clients)", flush=True)
    if len(missing) == len(PACKAGES):
        sys.exit(77)
# DeepSpeed and Accelerate look for these also where the group is there already.
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29500")
ranks.main(__name__)
