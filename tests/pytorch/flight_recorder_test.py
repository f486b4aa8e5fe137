# SPDX-License-Identifier: Apache-2.0
"""PyTorch's torchfrtrace reads Weir's records: it names the rank that missed a collective, or calls
that differ, and finds nothing else wrong in what groups and messages have done before."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile

from weir.flight_recorder import BACKEND

PROGRAM = """
import os, sys, time
import torch, torch.distributed as dist
rank, backend, way = int(os.environ["RANK"]), sys.argv[2], sys.argv[3]
if backend == "weir":
    import weir
store = dist.FileStore(sys.argv[1], 2)
dist.init_process_group(backend, store=store, rank=rank, world_size=2)
for i in range(300):
    dist.all_reduce(torch.ones(4))
second = dist.new_group()
dist.reduce(torch.ones(3), 1, group=second)
split = dist.group.WORLD.split_group([0, 1], group_name="half", group_desc="half")
split.allreduce([torch.ones(6)]).wait()
for tag in (3, 1):
    # torchfrtrace pairs messages in the order of the calls.
    for call in (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send):
        call(torch.ones(10 + tag), 1 - rank, tag=tag)
dist.all_to_all_single(torch.ones(4), torch.ones(4), group=second)
dist.all_to_all([torch.ones(rank + 1), torch.ones(rank + 1)], [torch.ones(1), torch.ones(2)])
dist.scatter(torch.ones(2), [torch.ones(2), torch.ones(2)] if rank == 0 else None, 0)
dist.gather(torch.ones(2), [torch.ones(2), torch.ones(2)] if rank == 1 else None, 1)
dist.broadcast(torch.ones(5, dtype=torch.int64), 1)
dist.all_gather([torch.ones(7), torch.ones(7)], torch.ones(7))
print("ready", flush=True)
try:
    if rank == 0:
        dist.all_reduce(torch.ones(1000))
    elif way == "differs":
        dist.all_gather_into_tensor(torch.ones(2000), torch.ones(1000))
    else:
        sys.stdin.readline()
except dist.DistBackendError as error:
    assert "made different calls" in str(error), error
print("told", flush=True)
sys.stdin.readline()
"""


def dump(records, dumps):
    """The entries of rank 0, of all that the ranks have recorded until now."""
    subprocess.run(
        [sys.executable, "-m", "weir", "flight-recorder", records, "--output", dumps],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    with open(os.path.join(dumps, "rank_0"), "rb") as file:
        return pickle.load(file)["entries"]


def torchfrtrace(dumps):
    trace = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace"]
    done = subprocess.run(
        [*trace, dumps, "--prefix", "rank_"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def run(backend, way):
    """The entries of rank 0, and what torchfrtrace says of all."""
    with tempfile.TemporaryDirectory(prefix="weir_records_") as folder:
        records, dumps = os.path.join(folder, "records"), os.path.join(folder, "dumps")
        os.mkdir(records, 0o700)
        environment = dict(os.environ, WEIR_RECORDER_DIR=records, WORLD_SIZE="2")
        before = ["-m", "weir.run"] if backend == "gloo" else []
        program = [*before, "-c", PROGRAM, os.path.join(folder, "store"), backend, way]
        processes = [
            subprocess.Popen(
                [sys.executable, *program],
                env=dict(environment, RANK=str(rank)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        try:
            for process in processes:
                assert process.stdout.readline() == "ready\n"
            if way == "differs":
                for process in processes:
                    assert process.stdout.readline() == "told\n"
            # Rank 0 may not be in its last operation yet; its record tells.
            for _ in range(100):
                entries = dump(records, dumps)
                if way == "differs" or entries[-1]["state"] == "started":
                    break
        finally:
            for process in processes:
                process.send_signal(signal.SIGKILL)
                process.wait()
        return entries, torchfrtrace(dumps)


def check_told(told, expected):
    missing = [line for line in expected if line not in told]
    assert not missing, f"torchfrtrace does not say {missing}:\n{told[-3000:]}"
    # Nothing else is wrong.
    assert told.count("sequence number:") == 1, told


def main() -> int:
    entries, told = run("weir", "misses")
    last = entries[-1]
    assert last["profiling_name"] == f"{BACKEND}:all_reduce" and last["input_sizes"] == [[1000]]
    assert last["input_dtypes"] == ["Float"]
    called = [entry["profiling_name"] for entry in entries if entry["collective_seq_id"]]
    of_world = ["all_to_all", "scatter", "gather", "broadcast", "all_gather", "all_reduce"]
    assert called[-6:] == [f"{BACKEND}:{name}" for name in of_world], called[-12:]
    others = {"reduce", "all_to_all", "all_reduce"}
    assert {f"{BACKEND}:{name}" for name in others} <= set(called[:-6]), called
    messages = sorted(entry["profiling_name"] for entry in entries if entry["is_p2p"])
    sent = [f"{BACKEND}:recv 0<-1"] * 2 + [f"{BACKEND}:send 0->1"] * 2
    assert messages == sent, messages
    number = last["collective_seq_id"]
    check_told(
        told,
        [
            f"Not all ranks joining collective, sequence number: {number}",
            f"collective: {BACKEND}:all_reduce",
            "missing ranks: {1}",
            "collective state: started",
        ],
    )
    entries, told = run("gloo", "differs")
    check_told(told, ["sequence number: ", "Culprit rank 1; Error type: COLLECTIVE_TYPE_MISMATCH"])
    print("torchfrtrace names the rank that missed a collective, and calls that differ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
