# SPDX-License-Identifier: Apache-2.0
"""Weir's records in the format of PyTorch's flight recorder, for ``torchfrtrace``.

    python -m weir flight-recorder [RECORDS...] --output DIR
    torchfrtrace DIR --prefix rank_

Every rank records its latest operations at all times (docs/recorder.md), so the records of a job
that hangs, or of one that has been killed, can be converted: by default those of this user's latest
job on this machine. RECORDS are files, or folders of files collected from several hosts.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable

import torch

from ._progress import Progress

# Of PyTorch's FlightRecorder.hpp.
FORMAT_VERSION = "2.10"
# What titles begin with: torchfrtrace before PyTorch 2.12 refuses all but NCCL's.
BACKEND = "gloo" if torch.__version__ >= "2.12" else "nccl"

_TYPES = {
    "float32": "Float",
    "float64": "Double",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "int8": "Char",
    "uint8": "Byte",
    "int32": "Int",
    "uint32": "UInt32",
    "int64": "Long",
    "uint64": "UInt64",
    "float8_e4m3": "Float8_e4m3fn",
    "float8_e5m2": "Float8_e5m2",
}

# By Weir's name: PyTorch's, and how many times the count go in and come out: "n" is once per rank.
_OPERATIONS = {
    "all_reduce": ("all_reduce", 1, 1),
    "broadcast": ("broadcast", 1, 1),
    "reduce": ("reduce", 1, 1),
    "all_gather": ("all_gather", 1, "n"),
    "all_gather_v": ("all_gather_v", 1, 1),
    "reduce_scatter": ("reduce_scatter", "n", 1),
    "reduce_scatter_v": ("reduce_scatter_v", 1, 1),
    "gather": ("gather", 1, "n"),
    "scatter": ("scatter", "n", 1),
    "all_to_all": ("all_to_all", "n", "n"),
    "all_to_all_v": ("all_to_all", 1, 1),
    "barrier": ("barrier", None, None),
}

_MESSAGES = {
    "send": ("send", "->"),
    "send with a tag": ("send", "->"),
    "receive": ("recv", "<-"),
    "receive with a tag": ("recv", "<-"),
}


def _find_weir_trace() -> str:
    package = os.path.dirname(os.path.abspath(__file__))
    # In a wheel, and in a build folder.
    for folder in (os.path.join(package, "bin"), os.path.join(package, "..", "..", "bin")):
        path = os.path.join(folder, "weir-trace")
        if os.path.exists(path):
            return path
    path = shutil.which("weir-trace")
    if path is None:
        raise FileNotFoundError(
            "weir-trace, which reads the records, is neither in the package nor on PATH"
        )
    return path


def read(records: Iterable[str] = ()) -> dict:
    """What ``weir-trace --json`` says of `records` (empty: of this user's latest job)."""
    done = subprocess.run(
        [_find_weir_trace(), "--json", *records], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode == 3 or not done.stdout.strip():
        raise FileNotFoundError("weir-trace found no records")
    return json.loads(done.stdout)


def dump(folder: str, records: Iterable[str] = ()) -> list[str]:
    """Writes a file ``rank_<number>`` for each process of a job into `folder`, and returns their
    paths. `records` as :func:`read` has them."""
    os.makedirs(folder, exist_ok=True)
    paths = []
    # Of many ranks or long records each step takes seconds.
    with Progress("flight-recorder, reading", 2) as progress:
        progress.now("the records, by weir-trace")
        report = read(records)
        progress.now("what is in them")
        dumps = convert(report)
    with Progress("flight-recorder, writing", len(dumps)) as progress:
        for rank, content in dumps.items():
            paths.append(os.path.join(folder, f"rank_{rank}"))
            progress.now(paths[-1])
            with open(paths[-1], "wb") as file:
                pickle.dump(content, file)
    return paths


def convert(report: dict) -> dict[int, dict]:
    """The content of PyTorch's dumps by global rank, of what :func:`read` returns."""
    communicators = [one for one in report["communicators"] if one["ranks"]]
    if not communicators:
        return {}
    # Ranks of the largest communicator are the global ones, as in PyTorch's default group.
    world = max(communicators, key=lambda one: one["rank_count"])
    global_ranks = {_process(record): record["rank"] for record in world["ranks"]}
    for one in communicators:
        for record in one["ranks"]:
            global_ranks.setdefault(_process(record), len(global_ranks))
    names = [one["name"] for one in communicators]
    dumps: dict[int, dict] = {
        rank: {
            "version": FORMAT_VERSION,
            "comm_lib_version": "weir",
            "pg_config": {},
            "pg_status": {},
            "entries": [],
        }
        for rank in sorted(global_ranks.values())
    }
    for number, one in enumerate(communicators):
        name = one["name"]
        if names.count(name) > 1:
            name = f"{name} {one['id']}"
        members = {record["rank"]: global_ranks[_process(record)] for record in one["ranks"]}
        if one is world:
            members = {rank: rank for rank in range(one["rank_count"])}
        description = "default_pg" if one is world else "undefined"
        # Before this number not all ranks have a record any more.
        recorded = [record["operations"] for record in one["ranks"] if record["operations"]]
        first = max((operations[0]["number"] for operations in recorded), default=0)
        for record in one["ranks"]:
            into = dumps[global_ranks[_process(record)]]
            into["pg_config"][name] = {
                "name": name,
                "desc": description,
                "ranks": str(sorted(members.values())),
            }
            called = max((op["number"] for op in record["operations"]), default=record["completed"])
            into["pg_status"][name] = {
                "last_enqueued_collective": called,
                "last_started_collective": called,
                "last_completed_collective": record["completed"],
            }
            group = (name, description)
            into["entries"] += _entries(record, group, number, one["rank_count"], first)
    for content in dumps.values():
        content["entries"].sort(key=lambda entry: entry.pop("order"))
        for number, entry in enumerate(content["entries"]):
            entry["record_id"] = number
    return dumps


def _process(record: dict) -> tuple[str, int]:
    return record["host"], record["process"]


def _entries(
    record: dict, group: tuple[str, str], number: int, size: int, first: int
) -> list[dict]:
    entries = []
    latest = 0
    for operation in record["operations"]:
        # What was complete at once has no times of its own, and goes behind what came before.
        latest = max(latest, operation["begin_ns"])
        name, kind, count = _parse(operation["call"])
        if name not in _OPERATIONS or operation["number"] < first:
            continue
        called, inputs, outputs = _OPERATIONS[name]
        entry = _entry(operation, group, number, f"{BACKEND}:{called}")
        entry["order"] = (latest, number, operation["number"])
        entry["collective_seq_id"] = entry["op_id"] = operation["number"]
        for key, times in (("input", inputs), ("output", outputs)):
            if times is not None:
                entry[f"{key}_sizes"] = [[count * (size if times == "n" else times)]]
                entry[f"{key}_dtypes"] = [_TYPES.get(kind, kind)]
        entries.append(entry)
    latest = 0
    for message in record["messages"]:
        latest = max(latest, message["begin_ns"])
        if message["kind"] not in _MESSAGES or message["peer"] < 0:
            continue
        called, arrow = _MESSAGES[message["kind"]]
        title = f"{BACKEND}:{called} {record['rank']}{arrow}{message['peer']}"
        entry = _entry(message, group, number, title)
        entry["order"] = (latest, number, message["number"])
        entry["p2p_seq_id"] = entry["op_id"] = message["number"]
        entry["is_p2p"] = True
        for key in ("input", "output"):
            entry[f"{key}_sizes"] = [[message["bytes"]]]
            entry[f"{key}_dtypes"] = ["Byte"]
        entries.append(entry)
    return entries


def _parse(call: str) -> tuple[str, str, int]:
    """Name, type and count of ``all_reduce(float32, sum, count 3)``."""
    found = re.match(r"(\w+)(?:\((\w*))?", call)
    count = re.search(r"count (\d+)", call)
    assert found is not None, call
    return found[1], found[2] or "", int(count[1]) if count else 0


def _entry(recorded: dict, group: tuple[str, str], number: int, title: str) -> dict:
    begin, end = recorded["begin_ns"], recorded["end_ns"]
    is_complete = recorded["completed"]
    return {
        "frames": [],
        "record_id": 0,
        "pg_id": number,
        "process_group": group,
        "collective_seq_id": 0,
        "p2p_seq_id": 0,
        "op_id": 0,
        "profiling_name": title,
        "time_created_ns": begin,
        "duration_ms": (end - begin) / 1e6 if is_complete and 0 < begin <= end else None,
        "input_sizes": [],
        "input_dtypes": [],
        "output_sizes": [],
        "output_dtypes": [],
        "state": "completed" if is_complete else "started",
        "time_discovered_started_ns": begin or None,
        "time_discovered_completed_ns": end if is_complete and end else None,
        "retired": is_complete,
        "timeout_ms": 0,
        "is_p2p": False,
        "thread_id": "",
        "thread_name": "",
    }


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m weir flight-recorder",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("records", nargs="*", help="files or folders of Weir's records")
    parser.add_argument("--output", required=True, help="the folder for the files rank_<number>")
    arguments = parser.parse_args(words)
    try:
        paths = dump(arguments.output, arguments.records)
    except FileNotFoundError as error:
        print(f"weir.flight_recorder: {error}", file=sys.stderr)
        return 1
    for path in paths:
        print(path)
    return 0
