# SPDX-License-Identifier: Apache-2.0
"""Whether Debian's Open MPI and UCX are built for CUDA, and then find the stand-in's devices."""

import subprocess
import sys


def output_of(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"{command[0]}: {error}")


def open_mpi():
    for line in output_of("ompi_info", "--parsable", "--all").splitlines():
        if "mpi_built_with_cuda_support:value:" in line:
            if line.endswith("true"):
                return
            sys.exit("Open MPI is built without CUDA")
    sys.exit("ompi_info does not say whether Open MPI is built with CUDA")


def ucx():
    if "Transport: cuda" not in output_of("ucx_info", "-d"):
        sys.exit("UCX has no transport cuda_copy")


trials = {"open_mpi": open_mpi, "ucx": ucx}
if len(sys.argv) != 2 or sys.argv[1] not in trials:
    sys.exit(f"usage: {sys.argv[0]} {'|'.join(trials)}")
trials[sys.argv[1]]()
