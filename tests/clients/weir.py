# SPDX-License-Identifier: Apache-2.0
"""Weir's libraries of a build folder, as the variables with which a client gets them."""

import os
import sys

DEVICES = 3
MEMORY = "1GiB"
# What another job on this machine set must not change a trial.
FOREIGN = ("WEIR_", "NCCL_", "CUDA_", "LD_", "TORCH_", "OMPI_", "PMIX_", "PYTHON")


class Weir:
    def __init__(self, source, build):
        folders = (
            [build]
            if build
            else [os.path.join(source, "build", name) for name in ("release", "dev")]
        )
        for folder in folders:
            self.folder = os.path.join(os.path.abspath(folder), "lib", "weir")
            self.nccl = os.path.join(self.folder, "libnccl.so.2")
            self.stand_ins = os.path.join(self.folder, "hostcuda")
            if os.path.exists(self.nccl) and os.path.exists(self.stand_in("libcuda.so.1")):
                return
        sys.exit(
            f"tools/clients: no libnccl.so.2 and libcuda.so.1 of Weir's in {folders}; "
            "build first: cmake --preset release && cmake --build --preset release"
        )

    def stand_in(self, name):
        return os.path.join(self.stand_ins, name)

    def environment(self, client, trial, taken):
        """By LD_LIBRARY_PATH; by LD_PRELOAD where a wheel's RPATH goes before that."""
        result = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        folders = [self.stand_ins] if trial.stand_ins else []
        result["LD_LIBRARY_PATH"] = ":".join([*folders, self.folder])
        if client.preloads:
            files = [self.nccl, self.stand_in("libcudart.so.13"), self.stand_in("libcuda.so.1")]
            result["LD_PRELOAD"] = " ".join(files)
        result["WEIR_HOSTCUDA_DEVICES"] = str(DEVICES)
        result["WEIR_HOSTCUDA_MEMORY"] = MEMORY
        result["OMP_NUM_THREADS"] = "1"
        result["CLIENT_NCCL"] = self.nccl
        result.update(client.variables)
        if taken is not None:
            result["CLIENT_TAKEN"] = taken
        return result
