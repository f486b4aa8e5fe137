#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An all-reduce for 4 ranks in two pairs, 0-1 and 2-3, with a slow link between the pairs: each
rank sends half of its data over it, once. Usage: 11_all_reduce_for_pairs.py FILE.json"""
import json
import sys


def exchange(peer, src, dst):
    return [{"op": "send", "peer": peer, "src": src}, {"op": "recv", "peer": peer, "dst": dst}]


def fold(dst, own, got, own_first):  # both ranks in one order, so that they have the same bits
    return {"op": "reduce", "dst": dst, "operands": [own, got] if own_first else [got, own]}


programs, got, pair = [], ["scratch", 0], ["scratch", 1]
for rank in range(4):
    near, far, mine = rank ^ 1, rank ^ 2, rank % 2  # two peers, and the half that this rank folds
    ops = exchange(near, ["in", 1 - mine], got)
    ops += [fold(pair, ["in", mine], got, rank < near)]
    ops += exchange(far, pair, got)
    ops += [fold(["out", mine], pair, got, rank < far)]
    ops += exchange(near, ["out", mine], ["out", 1 - mine])
    programs.append({"rank": rank, "ops": ops})
with open(sys.argv[1], "w") as file:
    json.dump({"format": "weir-programs", "version": 1, "collective": "all_reduce",
               "rank_count": 4, "shape": {"chunk_count": 2, "scratch_slots": 2},
               "programs": programs}, file, indent=1)
