# SPDX-License-Identifier: Apache-2.0
"""python -m weir.run: Weir in Gloo's place, in every way in which programs are started.

    launcher_test.py [--only NAME]
"""

from __future__ import annotations

import argparse
import concurrent.futures
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import traceback
import zipfile

import ranks

RUN = [sys.executable, "-m", "weir.run"]

# Does one all-reduce on Gloo's name, and says who served it.
BODY = """
import os, sys
import torch, torch.distributed as dist

def of_rank(rank, size, path, backend="gloo"):
    dist.init_process_group(backend, store=dist.FileStore(path, size), rank=rank, world_size=size)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert (tensor == size).all()
    weir = sys.modules.get("weir")
    served = weir is not None and weir.operation_counts() == {"ALLREDUCE": (1, 12)}
    assert dist.get_backend() == "gloo"
    os.write(1, b"WEIR\\n" if served else b"GLOO\\n")
    dist.destroy_process_group()
"""

BY_ENVIRONMENT = (
    BODY
    + """
if __name__ == "__main__":
    of_rank(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), sys.argv[1], *sys.argv[2:])
"""
)


class Folder:
    """Programs of one test."""

    def __init__(self, path: str):
        self.path = path
        self.stores = 0

    def write(self, name: str, text: str) -> str:
        path = os.path.join(self.path, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(text))
        return path

    def store(self) -> str:
        self.stores += 1
        return os.path.join(self.path, f"store_{self.stores}")


def run(command, size=1, code=0, cwd=None, **environment) -> list[str]:
    """The output of each rank of a job, which ends with `code`."""
    processes = []
    for rank in range(size):
        own = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(size), OMP_NUM_THREADS="1")
        own.update(environment)
        own = {name: value for name, value in own.items() if value is not None}
        processes.append(
            subprocess.Popen(
                command,
                env=own,
                cwd=cwd,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    outputs = ranks.wait(processes, 200)
    codes = [process.returncode for process in processes]
    assert codes == [code] * size, f"{command}: {codes}\n" + "\n".join(outputs)
    return outputs


def expect_served(outputs: list[str], times: int = 1) -> None:
    for output in outputs:
        assert output.count("WEIR") == times and "GLOO" not in output, output


def test_scripts_modules_and_text(folder):
    script = folder.write("train.py", BY_ENVIRONMENT)
    expect_served(run([*RUN, script, folder.store()], 2))
    expect_served(run([*RUN, "-m", "train", folder.store()], 2, cwd=folder.path))
    expect_served(run([*RUN, "-c", BY_ENVIRONMENT, folder.store()], 2))
    # The same script without it, so that the test can tell.
    outputs = run([sys.executable, script, folder.store()], 2)
    assert all("GLOO" in output for output in outputs), outputs


def test_the_parts_for_processors_of_other_backends(folder):
    script = folder.write("train.py", BY_ENVIRONMENT.replace('== "gloo"', '!= "weir"'))
    expect_served(run([*RUN, script, folder.store(), "cpu:gloo"], 2))
    text = BODY.replace("init_process_group(backend, ", "init_process_group(")
    text += "of_rank(int(os.environ['RANK']), 2, sys.argv[1])\n"
    expect_served(run([*RUN, "-c", text.replace('== "gloo"', "is not None"), folder.store()], 2))


def test_the_parts_of_a_backend_for_two_kinds_of_devices(folder):
    """Also where this PyTorch has no NCCL: only the part for processors is asked for it."""
    text = """
import torch.distributed.distributed_c10d as c10d
for name, wanted in (("cpu:gloo,cuda:nccl", "gloo"), ("cpu:weir,cuda:nccl", "weir")):
    import weir
    assert c10d.BackendConfig(c10d.Backend(name)).get_device_backend_map()["cpu"] == wanted
rank = int(os.environ["RANK"])
class Stub:
    def __init__(self, *arguments, **more):
        raise AssertionError("NCCL was asked for a group of processors")
if not dist.is_nccl_available():
    c10d.ProcessGroupNCCL = Stub
for number, name in enumerate(("cpu:gloo", "cpu:weir")):
    store = dist.FileStore(sys.argv[1] + str(number), 2)
    dist.init_process_group(name, store=store, rank=rank, world_size=2)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert isinstance(backend, weir._C.Backend), backend
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert (tensor == 2).all()
    dist.destroy_process_group()
assert weir.operation_counts() == {"ALLREDUCE": (2, 24)}
os.write(1, b"WEIR\\n")
"""
    imports = "import os, sys\nimport torch, torch.distributed as dist"
    script = folder.write("train.py", imports + text)
    expect_served(run([*RUN, script, folder.store()], 2))


def link_package(folder):
    """All of it but what names its PyTorch."""
    import weir

    package = os.path.dirname(weir.__file__)
    copy = os.path.join(folder.path, "weir")
    os.mkdir(copy)
    for name in os.listdir(package):
        if name not in ("_built_for.py", "__pycache__", "hook"):
            os.symlink(os.path.join(package, name), os.path.join(copy, name))
    os.mkdir(os.path.join(copy, "hook"))
    hook = os.path.join(package, "hook", "sitecustomize.py")
    shutil.copy(hook, os.path.join(copy, "hook"))  # it looks for the package where it lies


def test_a_package_without_its_hook_is_an_error(folder):
    """Not Gloo."""
    link_package(folder)
    folder.write("weir/_built_for.py", "import torch\nTORCH_VERSION = torch.__version__")
    script = folder.write("train.py", BY_ENVIRONMENT)
    for output in run([*RUN, script, folder.store()], 2, code=1, PYTHONPATH=folder.path):
        assert "cannot be put in Gloo's place" in output and "weir_in_place" in output, output


def test_a_package_for_another_pytorch_is_an_error(folder):
    """Not Gloo."""
    import weir_in_place

    link_package(folder)
    folder.write("weir/_built_for.py", 'TORCH_VERSION = "1.0.0"')
    os.symlink(weir_in_place.__file__, os.path.join(folder.path, "weir_in_place.py"))
    script = folder.write("train.py", BY_ENVIRONMENT)
    outputs = run([*RUN, script, folder.store()], 2, code=1, PYTHONPATH=folder.path)
    for output in outputs:
        assert "was built for PyTorch 1.0.0" in output and "GLOO" not in output, output


def test_torchrun(folder):
    script = folder.write(
        "train.py",
        BODY + "of_rank(int(os.environ['RANK']), int(os.environ['WORLD_SIZE']), sys.argv[1])",
    )
    torchrun = os.path.join(os.path.dirname(sys.executable), "torchrun")
    options = ["--nproc-per-node", "2", "--master-port", "0", script, folder.store()]
    expect_served(run([*RUN, torchrun, *options], RANK=None, WORLD_SIZE=None), 2)


def test_only_the_program_imports_pytorch(folder):
    """weir.run itself, which another program follows, would need seconds for it."""
    folder.write("other/torch.py", "raise SystemExit('PyTorch was imported')\n")
    path = os.path.join(folder.path, "other") + os.pathsep + os.environ["PYTHONPATH"]
    for words in (["-m", "weir.run"], ["-mweir.run"], ["-uBm", "weir.run"], ["-Bmweir.run"]):
        for program in (["-c", "print('started')"], ["echo", "started"]):
            (output,) = run([sys.executable, *words, *program], PYTHONPATH=path)
            assert output == "started\n", (words, program, output)
    # As for everything else of the package.
    folder.write("other/mine.py", "import weir\n")
    for words in (["-c", "import weir.run"], ["-m", "weir", "info"], ["-m", "mine", "weir.run"]):
        (output,) = run([sys.executable, *words], code=1, PYTHONPATH=path)
        assert output == "PyTorch was imported\n", (words, output)


class LeftOut(Exception):
    """A test whose program is not installed."""


def client(package: str) -> str:
    """The program of a client's name that starts jobs."""
    if importlib.util.find_spec(package) is None:
        raise LeftOut(f"{package} is not installed (tools/pytorch --clients)")
    return os.path.join(os.path.dirname(sys.executable), package)


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_accelerate_launch(folder):
    """Its way to start several processes on one host; --cpu alone starts one."""
    launch = [client("accelerate"), "launch", "--multi_gpu", "--num_processes", "2"]
    script = folder.write(
        "train.py",
        """
import os, sys
import torch, torch.distributed as dist
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
assert accelerator.num_processes == 2 and dist.get_backend() == "gloo"
total = accelerator.reduce(torch.full((3,), accelerator.process_index + 1.0), reduction="sum")
assert (total == 3).all()
import weir
counts = weir.operation_counts()
os.write(1, b"WEIR\\n" if counts["ALLREDUCE"] == (1, 12) else b"GLOO\\n")
dist.destroy_process_group()
""",
    )
    options = ["--main_process_port", "0", script]
    expect_served(run([*RUN, *launch, *options], RANK=None, WORLD_SIZE=None), 2)


DEEPSPEED = """
import os, sys
import torch, torch.distributed as dist
import deepspeed
# It would compile its all-reduce over shared memory now.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
backend = sys.argv[-1]
if backend == "weir":
    import weir
assert not dist.is_initialized()
deepspeed.init_distributed(dist_backend=backend)
assert dist.get_backend() == backend and dist.get_world_size() == 2
least = 4 * 25  # the parameters, or their gradients
PARAMETERS = "BROADCAST", "_ALLGATHER_BASE", "ALLGATHER", "COALESCED"
GRADIENTS = "ALLREDUCE", "REDUCE", "_REDUCE_SCATTER_BASE", "REDUCE_SCATTER"
import weir
for stage in (1, 2, 3):
    net = torch.nn.Linear(4, 5)
    with torch.no_grad():
        net.weight.fill_(1.0 + dist.get_rank())  # the first rank's are everybody's
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
        "zero_force_ds_cpu_optimizer": False,
    }
    weir.reset_operation_counts()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
    engine.backward(engine(torch.full((1, 4), 1.0 + dist.get_rank())).sum())
    engine.step()
    counts = weir.operation_counts()
    # The average of 1 and 2 is the gradient.
    with deepspeed.zero.GatheredParameters(list(net.parameters()), enabled=stage == 3):
        found = net.weight.detach().clone()
    assert torch.equal(found, torch.full((5, 4), 1 - 0.5 * 1.5)), (stage, found)
    served = all(
        sum(counts[name].bytes for name in counts if name in names) >= least
        for names in (PARAMETERS, GRADIENTS)
    )
    assert served, (stage, counts)
    engine.destroy()
os.write(1, b"WEIR\\n")
"""


def test_the_launcher_of_deepspeed(folder):
    """DeepSpeed makes the group itself, by either name; each stage of ZeRO."""
    launch = [client("deepspeed"), "--num_gpus", "2"]
    script = folder.write("train.py", DEEPSPEED)
    alone = {"RANK": None, "WORLD_SIZE": None, "DS_ACCELERATOR": "cpu"}
    for before, backend in (([], "weir"), (RUN, "gloo")):
        command = [*before, *launch, "--master_port", free_port(), script, backend]
        expect_served(run(command, **alone), 2)


def test_children_by_spawn_and_fork(folder):
    text = """
import torch.multiprocessing as mp
if __name__ == "__main__":
    for method in ("spawn", "fork"):
        mp.start_processes(of_rank, args=(2, sys.argv[1] + method), nprocs=2, start_method=method)
"""
    script = folder.write("train.py", BODY + text)
    expect_served(run([*RUN, script, folder.store()]), 4)


def test_the_users_own_paths_and_sitecustomize(folder):
    folder.write("own/mine.py", "value = 42\n")
    folder.write("own/sitecustomize.py", "import os; os.environ['OWN_CUSTOM'] = 'here'\n")
    text = "import os, sys, mine; print(mine.value, os.environ['OWN_CUSTOM'], sys.argv[1:])"
    path = os.pathsep.join([os.path.join(folder.path, "own"), os.environ.get("PYTHONPATH", "")])
    (output,) = run([*RUN, "-c", text, "--report", "-m", "x"], PYTHONPATH=path)
    assert output.strip() == "42 here ['--report', '-m', 'x']", output


def test_children_that_ignore_their_environment_are_left_alone(folder):
    text = "import torch.distributed as d; print(getattr(d.ProcessGroupGloo, 'is_weir', False))"
    program = f"""
import os, subprocess, sys, sysconfig
os.environ["PYTHONPATH"] += os.pathsep + sysconfig.get_path("purelib")  # -S finds PyTorch there
for option in (["-I"], ["-E"], ["-S"], []):
    subprocess.run([sys.executable, *option, "-c", {text!r}], check=True)
"""
    (output,) = run([*RUN, "-c", program])
    assert output.split() == ["False", "False", "False", "True"], output


# With TORCH_DISTRIBUTED_DEBUG=DETAIL, where PyTorch puts a wrapper around the backend.
IN_A_WRAPPER = """
import os, sys
import torch, torch.distributed as dist, weir

store = dist.FileStore(sys.argv[1], 2)
dist.init_process_group("weir", store=store, rank=int(os.environ["RANK"]), world_size=2)
backend = dist.group.WORLD._get_backend(torch.device("cpu")).wrapped_pg
backend.register_abort_hook(1, lambda: os.write(1, b"ended\\n"))
tensor = weir.empty(3).fill_(1)
weir.all_reduce(tensor)
assert tensor.tolist() == [2.0] * 3 and weir.lost_ranks() == [] and weir.arena_usage() is not None
weir.Window(torch.zeros(3))
dist.monitored_barrier()
os.write(1, b"WEIR\\n")
backend.abort()
dist.destroy_process_group()
"""


def test_details_for_debugging(folder):
    script = folder.write("details.py", IN_A_WRAPPER)
    words = [sys.executable, script, folder.store()]
    outputs = run(words, 2, TORCH_DISTRIBUTED_DEBUG="DETAIL")
    expect_served(outputs)
    assert all("ended" in output for output in outputs), outputs


def test_the_report(folder):
    script = folder.write("train.py", BY_ENVIRONMENT)
    outputs = run([*RUN, "--report", script, folder.store()], 2)
    for rank, output in enumerate(outputs):
        assert f"weir: rank {rank} (process " in output, output
        assert "allreduce 1 calls, 12 bytes" in output, output
    text = "import os, torch.distributed as dist; dist.init_process_group('gloo', rank=0, "
    text += "world_size=1, store=dist.HashStore())"
    (output,) = run([*RUN, "--report", "-c", text])
    assert re.search(r"weir: rank . \(process \d+\): no calls", output), output


def test_wrong_command_lines(folder):
    (output,) = run(RUN, code=2)
    assert "no program is given" in output
    (output,) = run([*RUN, "no_such_program_here"], code=127)
    assert "no_such_program_here" in output
    for word in ("--bogus", "-z"):
        (output,) = run([*RUN, word, "train.py"], code=2)
        assert "usage: python -m weir.run" in output and f"no option '{word}'" in output, output


def test_a_program_beside_this_python(folder):
    """A Python of a virtual environment may be called by its path."""
    environment = os.path.join(folder.path, "bin")
    os.mkdir(environment)
    python = os.path.join(environment, "python")
    program = os.path.join(environment, "only_here")
    with open(program, "w", encoding="utf-8") as file:
        file.write("#!/bin/sh\necho found it $WEIR_IN_PLACE_OF\n")
    os.chmod(program, 0o755)
    code = (
        f"import sys, runpy; sys.executable = {python!r}; "
        "sys.argv = ['weir.run', 'only_here']; runpy.run_module('weir.run', run_name='__main__')"
    )
    (output,) = run([sys.executable, "-c", code])
    assert output.strip() == "found it gloo", output


def test_the_debugging_mode_of_pytorch(folder):
    script = folder.write(
        "train.py",
        BODY
        + """
path, rank = sys.argv[1], int(os.environ["RANK"])
dist.init_process_group("gloo", store=dist.FileStore(path, 2), rank=rank, world_size=2)
tensor = torch.ones(3)
dist.all_reduce(tensor)
assert (tensor == 2).all()
try:
    dist.all_reduce(torch.ones(3 + rank))
except RuntimeError as error:
    assert "mismatch between collectives" in str(error), str(error)
    os.write(1, b"WEIR\\n")
""",
    )
    expect_served(run([*RUN, script, folder.store()], 2, TORCH_DISTRIBUTED_DEBUG="DETAIL"))


def test_gloos_class_used_directly(folder):
    text = """
import datetime, os, sys
import torch, torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroupGloo
rank, minute = int(os.environ["RANK"]), datetime.timedelta(seconds=60)
store = dist.FileStore(sys.argv[1], 2)
group = dist.ProcessGroupGloo(dist.PrefixStore("a", store), rank, 2, minute)
assert isinstance(group, dist.ProcessGroupGloo)
tensor = torch.ones(3)
group.allreduce([tensor]).wait()
assert (tensor == 2).all()
options = dist.ProcessGroupGloo._Options()
options._timeout = minute
options._devices = [dist.ProcessGroupGloo.create_default_device()]
options._threads = 2
other = ProcessGroupGloo(dist.PrefixStore("b", store), rank, 2, options)
other.barrier().wait()
assert other.name() == "gloo" and other.options._timeout == minute
import weir
assert weir.operation_counts() == {"ALLREDUCE": (1, 12), "BARRIER": (1, 0)}
os.write(1, b"WEIR\\n")
"""
    expect_served(run([*RUN, "-c", text, folder.store()], 2))


def test_rpc(folder):
    text = """
import os, sys
import torch, torch.distributed.rpc as rpc
rank = int(os.environ["RANK"])
options = rpc.TensorPipeRpcBackendOptions(init_method="file://" + sys.argv[1])
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
result = rpc.rpc_sync(f"worker{1 - rank}", torch.add, args=(torch.ones(2), 1))
assert (result == 2).all()
rpc.shutdown()
os.write(1, b"WEIR\\n")
"""
    expect_served(run([*RUN, "-c", text, folder.store()], 2))


def package_as_wheel(folder: str) -> str:
    """The package of this build as a wheel, as its installer makes it."""
    import weir
    import weir_in_place

    package = os.path.dirname(weir.__file__)
    name = f"weir-{weir.version}"
    path = os.path.join(folder, f"{name}-py3-none-any.whl")
    entries = [(weir_in_place.__file__, "weir_in_place.py")]
    # A link to the libraries in a build folder.
    entries.append((os.path.join(package, "lib", "libweir.so.0"), "weir/lib/libweir.so.0"))
    for root, _, files in os.walk(package):
        if "__pycache__" in root:
            continue
        relative = os.path.join("weir", os.path.relpath(root, package))
        entries += [(os.path.join(root, f), os.path.normpath(f"{relative}/{f}")) for f in files]
    information = f"{name}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        for source, entry in entries:
            wheel.write(source, entry)
        text = f"Metadata-Version: 2.1\nName: weir\nVersion: {weir.version}\n"
        wheel.writestr(f"{information}/METADATA", text)
        text = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{information}/WHEEL", text)
        names = [entry for _, entry in entries]
        names += [f"{information}/{file}" for file in ("METADATA", "WHEEL", "RECORD")]
        wheel.writestr(f"{information}/RECORD", "".join(f"{entry},,\n" for entry in names))
    return path


def test_the_hook_in_an_environment(folder):
    root = os.path.join(folder.path, "environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root], check=True)
    python = os.path.join(root, "bin", "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "-q"]
    outside = {"PYTHONPATH": None, "WEIR_IN_PLACE_OF": None}
    import torch

    (site,) = run([python, "-c", "import sysconfig as s; print(s.get_path('purelib'))"], **outside)
    site = site.strip()
    # PyTorch is the one of this Python; of it nothing else is run at the start.
    with open(os.path.join(site, "pytorch_of_the_test.pth"), "w", encoding="utf-8") as file:
        file.write(os.path.dirname(os.path.dirname(torch.__file__)) + "\n")
    run([*pip, "install", "--no-deps", "--no-index", package_as_wheel(folder.path)], **outside)
    hook = os.path.join(site, "weir_in_place.pth")
    assert not os.path.exists(hook)
    # From a build folder there is nothing that would remove it again.
    (output,) = run([*RUN, "--install-hook"], code=2)
    assert "needs an installed package" in output

    where = "import torch.distributed as d; print(getattr(d.ProcessGroupGloo, 'is_weir', False))"
    loaded = "import sys; print([m for m in sys.modules if 'weir' in m or 'torch' in m])"
    everything = "import sys; print(sorted(sys.modules))"
    before = run([python, "-c", everything], **outside)
    for _ in range(2):
        run([python, "-m", "weir.run", "--install-hook"], **outside)
        assert os.path.exists(hook)
    with_variable = dict(outside, WEIR_IN_PLACE_OF="gloo")
    assert run([python, "-c", where], **with_variable)[0].strip() == "True"
    assert run([python, "-c", loaded], **with_variable)[0].strip() == "['weir_in_place']"
    assert run([python, "-c", where], **outside)[0].strip() == "False"
    assert run([python, "-c", everything], **outside) == before
    for option, expected in (("-E", "['weir_in_place']"), ("-I", "[]"), ("-S", "[]")):
        assert run([python, option, "-c", loaded], **with_variable)[0].strip() == expected, option
    script = folder.write("train.py", BY_ENVIRONMENT)
    expect_served(run([python, script, folder.store()], 2, **with_variable))

    run([python, "-m", "weir.run", "--remove-hook"], **outside)
    assert not os.path.exists(hook)
    run([python, "-m", "weir.run", "--install-hook"], **outside)
    run([*pip, "uninstall", "-y", "weir"], **outside)
    left = [name for name in os.listdir(site) if "weir" in name]
    assert not left, left
    # One that was left, such as by a removal without pip.
    from weir.run import _HOOK_LINE

    with open(hook, "w", encoding="utf-8") as file:
        file.write(_HOOK_LINE)
    assert run([python, "-c", "print('no word')"], **with_variable)[0].strip() == "no word"


def passes(name: str, function) -> bool:
    path = tempfile.mkdtemp(prefix="weir_launcher_")
    try:
        function(Folder(path))
        print(f"passed {name}", flush=True)
    except LeftOut as reason:
        print(f"LEFT OUT: {name}: {reason}", flush=True)
    except BaseException:
        print(f"{traceback.format_exc()}\nFAILED {name}", flush=True)
        return False
    finally:
        shutil.rmtree(path, ignore_errors=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="only functions whose name has this in it")
    options = parser.parse_args()
    tests = [
        (name, function)
        for name, function in globals().items()
        if name.startswith("test_") and options.only in name
    ]
    # Most of the time one process at a time imports PyTorch: two tests use two processors. The last
    # takes longest.
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        passed = list(pool.map(lambda test: passes(*test), reversed(tests)))
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
