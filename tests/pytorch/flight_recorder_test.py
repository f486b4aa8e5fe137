# SPDX-License-Identifier: Apache-2.0
"""PyTorch's torchfrtrace reads Weir's records, and names the rank that missed a collective."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile

from weir.flight_recorder import BACKEND

PROGRAM = """
import os, sys, time
import torch, torch.distributed as dist
import weir
rank = int(os.environ["RANK"])
store = dist.FileStore(sys.argv[1], 2)
dist.init_process_group("weir", store=store, rank=rank, world_size=2)
for i in range(300):
    dist.all_reduce(torch.ones(4))
dist.broadcast(torch.ones(5, dtype=torch.int64), 1)
dist.all_gather([torch.ones(7), torch.ones(7)], torch.ones(7))
print("ready", flush=True)
if rank == 0:
    dist.all_reduce(torch.ones(1000))
else:
    sys.stdin.readline()
"""


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="weir_records_") as folder:
        records, dumps = os.path.join(folder, "records"), os.path.join(folder, "dumps")
        os.mkdir(records, 0o700)
        environment = dict(os.environ, WEIR_RECORDER_DIR=records, WORLD_SIZE="2")
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM, os.path.join(folder, "store")],
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
            # Rank 0 may not be in its last operation yet; its record tells.
            for _ in range(100):
                subprocess.run(
                    [sys.executable, "-m", "weir", "flight-recorder", records, "--output", dumps],
                    check=True,
                    stdout=subprocess.DEVNULL,
                )
                import pickle

                with open(os.path.join(dumps, "rank_0"), "rb") as file:
                    content = pickle.load(file)
                if content["entries"][-1]["state"] == "started":
                    break
        finally:
            for process in processes:
                process.send_signal(signal.SIGKILL)
                process.wait()
        last = content["entries"][-1]
        assert last["profiling_name"] == f"{BACKEND}:all_reduce" and last["input_sizes"] == [[1000]]
        assert last["input_dtypes"] == ["Float"]
        names = [entry["profiling_name"] for entry in content["entries"]]
        assert names[-3:-1] == [f"{BACKEND}:broadcast", f"{BACKEND}:all_gather"], names[-4:]
        trace = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace"]
        done = subprocess.run(
            [*trace, dumps, "--prefix", "rank_"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        number = last["collective_seq_id"]
        expected = [
            f"Not all ranks joining collective, sequence number: {number}",
            f"collective: {BACKEND}:all_reduce",
            "missing ranks: {1}",
            "collective state: started",
        ]
        missing = [line for line in expected if line not in done.stdout]
        if done.returncode != 0 or missing:
            print(done.stdout[-3000:])
            print(f"torchfrtrace ended with {done.returncode} and does not say {missing}")
            return 1
        # Nothing else is wrong.
        assert done.stdout.count("sequence number:") == 1, done.stdout
    print("torchfrtrace names the rank that missed a collective")
    return 0


if __name__ == "__main__":
    sys.exit(main())
