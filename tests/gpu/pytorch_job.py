#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's NCCL backend with Weir's libnccl.so.2 before it.

    pytorch_job.py RANKS --library LIBNCCL --expect TEXT [--case CASE]

Starts RANKS processes of pytorch_rank.py, or of a case of pytorch_cases.py, all on the first GPU,
with the library preloaded, and wants TEXT in what rank 0 explains of its choice. Exit status 77,
with the reason, where there is no PyTorch or no GPU. With --anywhere a GPU is not needed, and the
other arguments go to the ranks: --device cpu --backend gloo.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys

SKIPPED = 77
SECONDS_MAX = 400
FOLDER = os.path.dirname(os.path.abspath(__file__))


def reason_to_skip(needs_gpu):
    asked = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.cuda.is_available())"],
        capture_output=True,
        text=True,
    )
    if asked.returncode != 0:
        return f"{sys.executable} has no PyTorch"
    return None if asked.stdout.strip() == "True" or not needs_gpu else "PyTorch finds no GPU"


def free_port():
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return it.getsockname()[1]


def start(rank, arguments, port, rest):
    variables = dict(
        os.environ,
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(arguments.ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        WEIR_EXPLAIN="1",
        WEIR_TIMEOUT_MS="120000",
    )
    if arguments.library:
        preloaded = [arguments.library, os.environ.get("LD_PRELOAD", "")]
        variables["LD_PRELOAD"] = ":".join(filter(None, preloaded))
    program = ["pytorch_cases.py", arguments.case] if arguments.case else ["pytorch_rank.py"]
    return subprocess.Popen(
        [sys.executable, os.path.join(FOLDER, program[0]), *program[1:], *rest],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ranks", type=int)
    parser.add_argument("--library", help="Weir's libnccl.so.2")
    parser.add_argument("--expect", help="text of WEIR_EXPLAIN that must appear")
    parser.add_argument("--case", help="of pytorch_cases.py")
    parser.add_argument("--anywhere", action="store_true", help="also without a GPU")
    arguments, rest = parser.parse_known_args()
    why = reason_to_skip(not arguments.anywhere)
    if why is not None:
        print(f"skipped: {why}")
        return SKIPPED
    port = free_port()
    ranks = [start(rank, arguments, port, rest) for rank in range(arguments.ranks)]
    said, failed = "", []
    try:
        for rank, process in enumerate(ranks):
            text, _ = process.communicate(timeout=SECONDS_MAX)
            said += text
            dies = arguments.case == "killed" and rank > 0 and rank == arguments.ranks - 1
            if process.returncode != (-signal.SIGKILL if dies else 0):
                failed.append(f"rank {rank} ended with {process.returncode}")
    except subprocess.TimeoutExpired:
        failed.append(f"rank {rank} was not done after {SECONDS_MAX} s")
    finally:
        for process in ranks:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    print(said, end="")
    if arguments.expect and arguments.expect not in said:
        failed.append(f"nothing said '{arguments.expect}'")
    print("\n".join(failed) if failed else f"{arguments.ranks} ranks were right")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
