# SPDX-License-Identifier: Apache-2.0
"""Weir's choice of algorithm beside each algorithm forced, for ranks of this host over shared
memory: a group of ranks for each, which measure one loop each by turns."""

import os
import shutil
import statistics

from comparing.bench import Progress, format_size, run_together, say, shown_command, when_and_where

RANKS = [2, 4]
SIZES = ["8", "1K", "16K", "64K", "256K", "1M", "16M", "64M"]
CHOICE = "choice"
# Over mapped memory, and by messages through it.
FORCED = {
    "all_reduce": [
        "direct",
        "direct_two_phase",
        "ring",
        "recursive_doubling",
        "recursive_halving_doubling",
        "double_binary_tree",
        "ordered",
    ],
    "reduce_scatter": ["direct", "ring", "recursive_halving", "pairwise"],
    "all_gather": ["direct", "ring", "recursive_doubling", "bruck"],
    "all_to_all": ["direct", "bruck", "pairwise"],
    "all_to_all_v": ["direct", "pairwise", "linear"],
    "broadcast": ["direct", "chain", "binomial", "double_binary_tree", "linear"],
    "reduce": ["direct", "direct_two_phase", "chain", "binomial", "double_binary_tree", "ordered"],
    "gather": ["direct", "binomial", "linear"],
    "scatter": ["direct", "binomial", "linear"],
}
# In windows; messages are the same there, and all_to_all_v has one algorithm.
FORCED_WINDOWS = {
    op: [name for name in names if name in ("direct", "direct_two_phase")]
    for op, names in FORCED.items()
    if op != "all_to_all_v"
}
# "window" can be forced from these bytes of the whole operation on.
WINDOW_FROM = {
    "all_reduce": 16 << 10,
    "reduce_scatter": 16 << 10,
    "all_gather": 16 << 10,
    "all_to_all": 16 << 10,
    "broadcast": 256 << 10,
    "reduce": 256 << 10,
    "gather": 1 << 20,
    "scatter": 1 << 20,
}
LOOPS = 9
REGRET_MOST = 1.15  # the project's bar for what repeats
RUN_SECONDS_MAX = 180


def candidates(op, windows, size):
    if not windows:
        return FORCED[op]
    return FORCED_WINDOWS[op] + (["window"] if size >= WINDOW_FROM[op] else [])


def runs_of(sizes):
    """(windows, op, sizes that have the same candidates)"""
    runs = []
    for windows in (False, True):
        for op in FORCED_WINDOWS if windows else FORCED:
            by_candidates = {}
            for size in sizes:
                by_candidates.setdefault(tuple(candidates(op, windows, size)), []).append(size)
            runs += [(windows, op, some) for some in by_candidates.values()]
    return runs


def parse_turns(text):
    """{(group, bytes): (wrong elements, microseconds of each turn)}"""
    found = {}
    for line in text.splitlines():
        fields = line.strip().split(",")
        if len(fields) > 5 and fields[0] == "turns":
            found[int(fields[1]), int(fields[3])] = (int(fields[4]), list(map(float, fields[5:])))
    return found


def measure_one_host(arguments, program, folder):
    """{(name, op, bytes): {algorithm: for each round, the time of each turn}}, and failures."""
    times, failures = {}, []
    cores = len(os.sched_getaffinity(0))
    runs = runs_of(arguments.sizes)
    progress = Progress(arguments.rounds * len(arguments.ranks) * len(runs))
    cache = os.path.join(folder, "cache")
    for ranks in arguments.ranks:
        # The machine is measured once, alone: groups that start together would disturb each other.
        shutil.rmtree(cache, ignore_errors=True)
        os.makedirs(cache, mode=0o700)
        pins = ["--pin"] if ranks <= cores else []
        options = ["--ranks", str(ranks), "--ops", "all_reduce", "--sizes", "8", *pins]
        _, error = run_together([([program, *options], {"WEIR_CACHE_DIR": cache})], RUN_SECONDS_MAX)
        if error:
            failures.append(f"{ranks} ranks: {error}")
            continue
        # Rounds are apart, so that what happens to the machine for a minute is not in all of them.
        for round_index in range(arguments.rounds):
            for windows, op, sizes in runs:
                name = f"{ranks} ranks" + (", windows" if windows else "")
                progress.step(f"{name}, round {round_index + 1}: {op}")
                groups = [CHOICE, *candidates(op, windows, sizes[0])]
                values = ("" if group == CHOICE else f"{op}={group}" for group in groups)
                options = [
                    *("--ranks", str(ranks), "--turns", ";".join(values)),
                    *("--ops", op, "--sizes", ",".join(map(str, sizes))),
                    *("--target-ms", str(arguments.target_ms), "--loops", str(LOOPS), "--fixed"),
                    *("--min-iterations", "1"),
                    *(["--windows"] if windows else []),
                    *pins,
                ]
                out, error = run_together(
                    [([program, *options], {"WEIR_CACHE_DIR": cache})], RUN_SECONDS_MAX
                )
                for (group, size), (wrong, turns) in parse_turns(out).items():
                    if wrong:
                        error = f"{size} bytes by {groups[group]}: {wrong} wrong elements"
                        continue
                    of_algorithm = times.setdefault((name, op, size), {})
                    of_algorithm.setdefault(groups[group], []).append(turns)
                if error:
                    failures.append(f"{name}, {op}: {error}")
                    say(f"    failed: {failures[-1]}")
    return times, failures


def ratios_of(of_algorithm):
    """{algorithm: for each round, the median of the choice's time over its own of the same turn}"""
    chosen = of_algorithm.get(CHOICE, [])
    return {
        name: [
            statistics.median(a / b for a, b in zip(mine, other))
            for mine, other in zip(chosen, rounds)
        ]
        for name, rounds in of_algorithm.items()
        if name != CHOICE and chosen
    }


def regret(of_algorithm):
    """The largest ratio and its algorithm; (None, None) where nothing was measured."""
    medians = {name: statistics.median(r) for name, r in ratios_of(of_algorithm).items() if r}
    best = max(medians, key=medians.get, default=None)
    return medians.get(best), best


def repeated_regret(of_algorithm):
    """The most by which one algorithm was faster than the choice in every round, at least 1."""
    least = [min(r) for r in ratios_of(of_algorithm).values() if r]
    return max([1.0, *least]) if least else None


def markdown_one_host(arguments, times, failures):
    ratios = [r for r, _ in map(regret, times.values()) if r]
    repeated = [r for r in map(repeated_regret, times.values()) if r]
    lines = [
        (
            f"{when_and_where(len(os.sched_getaffinity(0)))}, load {os.getloadavg()[0]:.1f}:"
            f" `{shown_command()}`. float32 sum, bytes of the whole operation, the same buffers in"
            f" each iteration, {arguments.rounds} rounds of {LOOPS} turns, in which the choice and"
            f" each forced algorithm run {arguments.target_ms:g} ms. A number is the time of Weir's"
            " choice over that of the forced algorithm that was best, the median over the rounds"
            " of the medians over turns; the algorithm is named where it is another than `direct`."
            f" **Geometric mean {statistics.geometric_mean(ratios):.3f}, worst {max(ratios):.2f};"
            " of what repeats (the most by which one algorithm was faster in every round, at least"
            f" 1) {statistics.geometric_mean(repeated):.3f} and {max(repeated):.2f}.** Bold:"
            f" repeats by more than {REGRET_MOST:g}."
        ),
        "",
        "| ranks | operation | " + " | ".join(map(format_size, arguments.sizes)) + " |",
        "| --- | --- |" + " ---: |" * len(arguments.sizes),
    ]
    rows = {(ranks, "windows" in ranks, op) for ranks, op, _ in times}
    order = list(FORCED)
    for ranks, _, op in sorted(rows, key=lambda row: (row[0], order.index(row[2]))):
        cells = []
        for size in arguments.sizes:
            of_algorithm = times.get((ranks, op, size), {})
            ratio, best = regret(of_algorithm)
            if ratio is None:
                cells.append("")
                continue
            again = repeated_regret(of_algorithm)
            text = f"**{ratio:.2f}**" if again > REGRET_MOST else f"{ratio:.2f}"
            cells.append(text if best == "direct" else f"{text} ({best})")
        lines.append(f"| {ranks} | {op} | {' | '.join(cells)} |")
    lines += [line for reason in failures for line in ("", f"Failed: {' '.join(reason.split())}")]
    return "\n".join(lines) + "\n"
