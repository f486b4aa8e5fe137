# SPDX-License-Identifier: Apache-2.0
"""perf/compare_mpi/mpi_perf.c over Weir's tcp, on hosts of comparing.hosts or over loopback."""

import os
import secrets
import shutil
import socket
import sys

from comparing.bench import SOURCE, compile_benchmark


class Loopback:
    """Two ranks of this host, in place of Hosts."""

    title = "over loopback"
    addresses = ["127.0.0.1", "127.0.0.1"]
    interface = "lo"
    spans = False

    def inside(self, _, *command):
        return list(command)

    def close(self):
        pass


def compile_weir(folder, library):
    program, error = compile_benchmark(
        folder,
        "mpi_perf.weir",
        shutil.which("cc") or "gcc",
        [
            "-DCOMPARE_WEIR",
            "-I",
            os.path.join(SOURCE, "include"),
            library,
            f"-Wl,-rpath,{os.path.dirname(library)}",
        ],
    )
    if program is None:
        sys.exit(f"the Weir side does not compile: {error}")
    return program


def rank_processes(path, program, options, environment):
    """(command, environment) of one process for each address of `path`, rank 0 last."""
    size = len(path.addresses)
    return [
        (
            path.inside(rank, program, *options),
            {"WEIR_RANK": str(rank), "WEIR_SIZE": str(size), **environment(rank)},
        )
        for rank in reversed(range(size))
    ]


class WeirOverTcp:
    """How its ranks find each other and where they keep their measurements: the tool's `folder`."""

    def __init__(self, path, folder):
        self.path = path
        self.cache = os.path.join(folder, "cache")
        os.makedirs(self.cache, mode=0o700, exist_ok=True)
        with socket.socket() as s:  # a port that is free now; in fresh namespaces all are
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]

    def environment(self, rank, run_folder):
        secret = os.path.join(run_folder, "secret")
        if not os.path.exists(secret):
            with open(
                os.open(secret, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii"
            ) as file:
                file.write(secrets.token_hex(32))
        spans = self.path.spans
        return {
            "WEIR_TRANSPORT": "tcp",
            "WEIR_IFNAME": "=" + self.path.interface,
            "WEIR_RENDEZVOUS": "master",
            "WEIR_LOCAL_RANK": "0" if spans else str(rank),
            "WEIR_LOCAL_SIZE": "1" if spans else str(len(self.path.addresses)),
            "WEIR_SECRET_FILE": secret,
            "MASTER_ADDR": self.path.addresses[0],
            "MASTER_PORT": str(self.port),
            "WEIR_CACHE_DIR": self.cache,
        }
