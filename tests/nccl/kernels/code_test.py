#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What nvcc makes of the reduction kernels: small floats are converted in pairs by the instructions
that an architecture has, and one by one where it has none.

    code_test.py NVCC SOURCE_FOLDER

Where nvdisasm is on the PATH, it also shows how many instructions a vector of 16 bytes takes.
"""

import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile

AT_A_TIME = 2
FROM_F32 = {
    "float16": "cvt.rn.f16x2.f32",
    "bfloat16": "cvt.rn.bf16x2.f32",
    "float8e4m3": "cvt.rn.satfinite.e4m3x2.f32",
    "float8e5m2": "cvt.rn.satfinite.e5m2x2.f32",
}
TO_F16 = {"float8e4m3": "cvt.rn.f16x2.e4m3x2", "float8e5m2": "cvt.rn.f16x2.e5m2x2"}
# The smallest architecture with the instructions.
FIRST = {"float16": 80, "bfloat16": 80, "float8e4m3": 89, "float8e5m2": 89}
# In the loop over the sources of a product: 16 bytes are read, converted and multiplied.
LOOP_MAX = {"float16": 60, "bfloat16": 60, "float8e4m3": 90, "float8e5m2": 90}


def compiled(nvcc, source, folder, architecture, kind):
    name = os.path.join(folder, f"{architecture}.{kind}")
    code = f"compute_{architecture}" if kind == "ptx" else f"sm_{architecture}"
    subprocess.run(
        [nvcc, "-std=c++17", "-O3", "-fmad=false", "-I", source, f"-{kind}", "-o", name]
        + [f"-gencode=arch=compute_{architecture},code={code}"]
        + [os.path.join(source, "cuda/kernels/kernels.cu")],
        check=True,
        timeout=300,
    )
    return name


def blocks_of(lines):
    """The instructions between labels and jumps."""
    block = []
    for line in lines:
        line = line.strip()
        if line.endswith(":") or re.search(r"\b(bra|BRA|BSYNC)\b", line):
            if block:
                yield block
            block = []
        elif line.endswith(";") and not line.startswith("."):
            block.append(line)
    if block:
        yield block


def kernels_of(text, begin):
    """The lines of each reduction kernel."""
    found = {}
    lines = None
    for line in text.splitlines():
        match = re.search(begin, line)
        if match:
            lines = found.setdefault(match.group(1), [])
        elif lines is not None:
            lines.append(line)
    return found


def check_ptx(text, architecture, wrong):
    kernels = kernels_of(text, r"\.entry weir_(?:reduce_)?(\w+)\(")
    for name, instruction in FROM_F32.items():
        body = "\n".join(kernels[name])
        has = architecture >= FIRST[name]
        wanted = [instruction] + ([TO_F16[name]] if name in TO_F16 else [])
        for one in wanted:
            if (one in body) != has:
                wrong.append(f"compute_{architecture}: {name} {'lacks' if has else 'has'} {one}")
        if not has:
            continue
        loops = [
            block
            for block in blocks_of(kernels[name])
            if any("ld.global.v4" in it for it in block)
            and sum("mul.f32" in it or "mul.rn.f32" in it for it in block) >= 8
        ]
        sizes = sorted(len(it) for it in loops)
        print(f"compute_{architecture} {name}: loop over the sources of a product {sizes}")
        if not sizes or sizes[0] > LOOP_MAX[name]:
            wrong.append(f"compute_{architecture}: {name}: loop of {sizes} instructions")


def show_sass(nvdisasm, file, architecture, wrong):
    text = subprocess.run(
        [nvdisasm, "-c", file], stdout=subprocess.PIPE, text=True, check=True, timeout=120
    ).stdout
    text = re.sub(r"/\*.*?\*/", "", text)
    kernels = kernels_of(text, r"^\.text\.weir_(?:reduce_)?(\w+):")
    for name in FROM_F32:
        loops = [
            len(block)
            for block in blocks_of(kernels[name])
            if any("LDG.E.128" in it for it in block) and sum("FMUL" in it for it in block) >= 8
        ]
        count = sum("F2FP" in it for it in kernels[name])
        print(f"sm_{architecture} {name}: {count} F2FP, such a loop {sorted(loops)}")
        if count == 0:
            wrong.append(f"sm_{architecture}: {name} has no F2FP")


def main():
    nvcc, source = sys.argv[1:]
    nvdisasm = shutil.which("nvdisasm")
    jobs = [(80, "ptx"), (89, "ptx")] + ([(90, "cubin")] if nvdisasm else [])
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
            files = list(pool.map(lambda job: compiled(nvcc, source, folder, *job), jobs))
        for (architecture, kind), file in zip(jobs, files):
            if kind == "cubin":
                show_sass(nvdisasm, file, architecture, wrong)
                continue
            with open(file, encoding="utf-8") as text:
                check_ptx(text.read(), architecture, wrong)
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
