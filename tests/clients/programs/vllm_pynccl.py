# SPDX-License-Identifier: Apache-2.0
"""vLLM's pynccl: its files as they are in the wheel, with PyTorch's CUDA build.

The rest of vLLM, which needs gigabytes of packages, is replaced by the few names that these files
import from it.
"""

import logging
import os
import sys
import types

import torch
import torch.distributed as dist
from ranks import expect, run

COUNT = 1000


def module(name, **names):
    made = types.ModuleType(name)
    made.__dict__.update(names)
    sys.modules[name] = made


class Logger(logging.Logger):
    debug_once = logging.Logger.debug
    info_once = logging.Logger.info
    warning_once = logging.Logger.warning


def replace_the_rest():
    variables = {
        "VLLM_NCCL_SO_PATH": os.environ.get("VLLM_NCCL_SO_PATH"),
        "VLLM_DISABLE_PYNCCL": False,
        "VLLM_USE_NCCL_SYMM_MEM": False,
        "VLLM_NCCL_INCLUDE_PATH": None,
    }
    module("vllm.envs", **variables)
    module("vllm.logger", init_logger=Logger)
    platform = types.SimpleNamespace(
        is_rocm=lambda: False, is_cuda=lambda: True, fp8_dtype=lambda: torch.float8_e4m3fn
    )
    module("vllm.platforms", current_platform=platform)
    module("vllm.utils.torch_utils", current_stream=torch.cuda.current_stream)
    module("vllm.distributed.utils", StatelessProcessGroup=type("StatelessProcessGroup", (), {}))


# The files are taken from the wheel without the packages' __init__.py, so these are namespaces.
sys.path.insert(0, os.environ["CLIENT_TAKEN"])
replace_the_rest()
import vllm.envs  # noqa: E402

vllm.envs = sys.modules["vllm.envs"]
from vllm.distributed.device_communicators import pynccl, pynccl_wrapper  # noqa: E402


def of(rank, count=COUNT):
    return (torch.arange(count) % 7 + 10 * rank).float()


def wrapper(rank):
    """NCCLLibrary: every function that it resolves, and operations on pointers."""
    torch.cuda.set_device(rank.rank)
    nccl = pynccl_wrapper.NCCLLibrary()
    expect("the major version", nccl.ncclGetVersion().split(".")[0], "2")
    number = pynccl_wrapper.ncclUniqueId()
    told = rank.agree("id", lambda: bytes(nccl.ncclGetUniqueId()))
    number = type(number).from_buffer_copy(told)
    comm = nccl.ncclCommInitRank(rank.count, number, rank.rank)
    data, result = of(rank.rank).to("cuda"), of(9).to("cuda")
    stream = pynccl_wrapper.cudaStream_t(torch.cuda.current_stream().cuda_stream)
    types_of = pynccl_wrapper.ncclDataTypeEnum.from_torch(data.dtype)
    total = pynccl_wrapper.ncclRedOpTypeEnum.from_torch(dist.ReduceOp.SUM)

    def pointer(tensor):
        return pynccl_wrapper.buffer_type(tensor.data_ptr())

    nccl.ncclAllReduce(pointer(data), pointer(result), COUNT, types_of, total, comm, stream)
    expect("all-reduce", result.cpu(), sum(of(peer) for peer in range(rank.count)))
    nccl.ncclBroadcast(pointer(data), pointer(result), COUNT, types_of, 1, comm, stream)
    expect("broadcast", result.cpu(), of(1))
    nccl.ncclCommDestroy(comm)


def communicator(rank):
    """PyNcclCommunicator, whose warm-up fills a tensor with zeros on the device."""
    torch.cuda.set_device(rank.rank)
    dist.init_process_group(
        "gloo", init_method=f"file://{rank.folder}/store", rank=rank.rank, world_size=rank.count
    )
    comm = pynccl.PyNcclCommunicator(dist.group.WORLD, rank.rank)
    expect("it is enabled", comm.available and not comm.disabled, True)
    data = of(rank.rank).to("cuda")
    result = comm.all_reduce(data)
    expect("all_reduce", result.cpu(), sum(of(peer) for peer in range(rank.count)))
    gathered = of(0, COUNT * rank.count).to("cuda")
    comm.all_gather(gathered, data)
    expect("all_gather", gathered.cpu(), torch.cat([of(peer) for peer in range(rank.count)]))
    if rank.rank == 0:
        comm.send(data, 1)
    else:
        comm.recv(data, 0)
        expect("recv", data.cpu(), of(0))
    dist.destroy_process_group()


run({"wrapper": wrapper, "communicator": communicator})
