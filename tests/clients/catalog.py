# SPDX-License-Identifier: Apache-2.0
"""The clients that tools/clients runs, their trials, and what is known not to work.

A trial without `known` is expected to work. `known` says why one is not, and what its program says
then: another failure is bad. docs/clients.md has the whole story.
"""

import dataclasses
import os

PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs")


@dataclasses.dataclass(frozen=True)
class Known:
    reason: str
    says: str  # the program's output has this
    works_from: str | None = None  # the version of the client that has no such fault


@dataclasses.dataclass(frozen=True)
class Trial:
    name: str
    known: Known | None = None
    seconds_max: int = 120
    stand_ins: bool = True  # the stand-ins for CUDA are on the path


@dataclasses.dataclass(frozen=True)
class Client:
    name: str
    program: str
    trials: tuple
    requirements: tuple = ()
    version_of: str | None = None  # the package, of PyPI or Debian, whose version is shown
    ci: bool = False  # small and quick
    preloads: bool = False  # the wheel's RPATH goes before LD_LIBRARY_PATH
    starter: tuple = ()  # goes before the interpreter
    needs: tuple = ()  # programs of Debian's; without them the client is not run
    within: str | None = None  # the client whose environment this one uses
    variables: dict = dataclasses.field(default_factory=dict)
    files_of: dict | None = None  # a package from whose wheel only some files are taken

    @property
    def program_path(self):
        return os.path.join(PROGRAMS, self.program)


MPIRUN = ("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "2")
RUNTIME = "the CUDA runtime linked into the wheel needs private tables of NVIDIA's driver"
STATIC_RUNTIME = Known(RUNTIME, "cudaGetDeviceCount: got")
CUPYS_RUNTIME = Known(RUNTIME, "CUDARuntimeError: cudaError")
CUBLAS = Known(
    "cuBLAS is device code, and needs private tables of NVIDIA's driver",
    "cublasCreate",
)
MULTICAST = Known(
    "before 2.15 PyTorch offers NCCL's allocator only on devices with multicast",
    "NCCL mem allocator is not supported",
    works_from="2.15",
)

CLIENTS = (
    Client(
        "nccl4py",
        "nccl4py.py",
        (
            Trial("collectives"),
            Trial("changes"),
            Trial("one_sided"),
            Trial("one_process"),
            Trial("parameters"),
            Trial("fork"),
        ),
        requirements=("nccl4py", "cuda-core[cu13]", "numpy"),
        version_of="nccl4py",
        ci=True,
    ),
    Client(
        "cuda-core",
        "cuda_core.py",
        (
            Trial("streams"),
            Trial("memory"),
            Trial("static_runtime", STATIC_RUNTIME),
            Trial("nvml"),
        ),
        within="nccl4py",
        version_of="cuda-core",
        ci=True,
    ),
    Client(
        "mpi4py",
        "mpi4py_beside.py",
        (Trial("beside"),),
        requirements=("mpi4py", "numpy"),
        version_of="mpi4py",
        ci=True,
        starter=MPIRUN,
        needs=("mpirun.openmpi",),
    ),
    Client(
        "debian",
        "debian_mpi.py",
        (
            Trial("open_mpi", Known("Debian builds Open MPI without CUDA", "built without CUDA")),
            Trial("ucx", Known("Debian builds UCX without CUDA", "no transport cuda_copy")),
        ),
        version_of="openmpi-bin",
        needs=("ompi_info", "ucx_info"),
        ci=True,
    ),
    Client(
        "nccl",
        "nccl_wheel.py",
        (
            Trial("symbols"),
            Trial("no_driver", stand_ins=False),
            Trial("stand_in"),
        ),
        requirements=("nvidia-nccl-cu13",),
        version_of="nvidia-nccl-cu13",
        ci=True,
    ),
    Client(
        "cupy",
        "cupy_nccl.py",
        (
            Trial("library"),
            Trial("communicator"),
            Trial("host_mode", stand_ins=False),
            Trial("groups", stand_ins=False),
            Trial("fork"),
            Trial("runtime", CUPYS_RUNTIME),
            Trial("distributed", CUPYS_RUNTIME),
        ),
        requirements=("cupy-cuda13x",),
        version_of="cupy-cuda13x",
        ci=True,
    ),
    Client(
        "torch",
        "torch_nccl.py",
        (
            Trial("init"),
            Trial("collectives"),
            Trial("coalesced"),
            Trial("split_group"),
            Trial("barrier_and_objects"),
            Trial("watchdog"),
            Trial("abort"),
            Trial("shrink"),
            Trial("symmetric_memory"),
            Trial("flight_recorder"),
            Trial("fork"),
            Trial("graph"),
            Trial("allocator", MULTICAST),
            Trial("data_parallel"),
            Trial("matrices", CUBLAS),
        ),
        requirements=("torch", "numpy"),
        version_of="torch",
        preloads=True,
    ),
    Client(
        "torch-legacy",
        "torch_nccl.py",
        (
            Trial("collectives"),
            Trial("coalesced"),
            Trial("split_group"),
            Trial("watchdog"),
            Trial("abort"),
            Trial("shrink"),
            Trial("flight_recorder"),
            Trial("fork"),
            Trial("graph"),
        ),
        within="torch",
        version_of="torch",
        preloads=True,
        variables={"TORCH_DIST_USE_NCCL2": "0"},
    ),
    Client(
        "vllm",
        "vllm_pynccl.py",
        (Trial("wrapper"), Trial("communicator")),
        within="torch",
        preloads=True,
        files_of={
            "package": "vllm",
            "files": [
                "vllm/distributed/device_communicators/pynccl.py",
                "vllm/distributed/device_communicators/pynccl_wrapper.py",
                "vllm/utils/nccl.py",
            ],
        },
    ),
    Client(
        "jax",
        "jax_plugin.py",
        (
            Trial("loads"),
            Trial("resolves"),
            Trial(
                "devices", Known("asks for CUPTI, which needs NVIDIA's driver", "cuptiGetVersion")
            ),
        ),
        requirements=("jax[cuda13]",),
        preloads=True,
        version_of="jax-cuda13-plugin",
    ),
)
