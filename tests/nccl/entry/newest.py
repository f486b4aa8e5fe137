#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares this project's libnccl.so.2 and nccl.h with NCCL's.

known   with the names and sizes of the version that the project implements (known.txt)
newest  with the newest wheel of NCCL that PyPI has: the functions that its library exports and its
        headers declare, the names in nccl.h, and the sizes of the structures; and the facts of
        abi_facts.h must hold for its nccl.h. Exit status 77: the wheel cannot be had.

The wheel is kept by its version, as its nccl.h and a list of its functions.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile
import zipfile

WHEEL = "nvidia-nccl-cu13"
SKIPPED = 77
SECONDS_TO_ASK = 60
SECONDS_TO_FETCH = 480
STRUCTURES = ("ncclConfig_t", "ncclCollConfig_t", "ncclSimInfo_t", "ncclEncryptionConfig_t",
              "ncclConfigExt_t", "ncclWaitSignalDesc_t", "ncclUniqueId")
# What NCCL's header needs of CUDA's.
CUDA_HEADERS = {
    "cuda_runtime.h": "#include <stddef.h>\n"
                      "typedef struct CUstream_st* cudaStream_t;\n"
                      "typedef struct CUevent_st* cudaEvent_t;\n",
    "cuda_fp16.h": "",
    "cuda_bf16.h": "",
    "cuda_fp8.h": "",
}


def run(arguments, seconds, **options):
    return subprocess.run(arguments, timeout=seconds, text=True, capture_output=True, check=True,
                          **options).stdout


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def functions_of(library):
    names = [line.split()[0] for line in run(["nm", "-D", "--defined-only", "--format=posix",
                                              library], 60).splitlines()]
    return {name for name in names if re.fullmatch(r"p?nccl[A-Z]\w*", name)}


def names_of(header):
    """Macros, types, enumerators and functions, but no tags of versions like ncclConfig_v23200."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", read(header), flags=re.S)
    text = re.sub(r"^\s*#\s*(?:if|elif)[^\n]*", " ", text, flags=re.M)
    # This project's header declares a function and its twin together.
    text = re.sub(r"WEIR_NCCL_DECLARE\(([^,]+), (\w+)", r"\1 nccl\2 pnccl\2", text)
    names = set(re.findall(r"\b(?:p?nccl[A-Z]\w*|NCCL_[A-Z0-9_]+)\b", text))
    return {name for name in names if not re.search(r"_v\d+$|_impl$", name)}


def sizes_by(compiler, include_flags):
    """The sizes of the structures that the header has."""
    sizes = {}
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "sizes.c")
        for name in STRUCTURES:
            with open(source, "w", encoding="utf-8") as file:
                file.write('#include <stdio.h>\n#include <nccl.h>\nint main(void) '
                           f'{{ printf("%zu", sizeof({name})); return 0; }}\n')
            program = os.path.join(folder, "sizes")
            try:
                run([compiler, "-x", "c", source, "-o", program, *include_flags], 60)
            except subprocess.CalledProcessError:
                continue
            sizes[name] = int(run([program], 10))
    return sizes


def read_known(path):
    names, sizes = set(), {}
    for line in read(path).splitlines():
        words = line.split("#")[0].split()
        if len(words) == 2:
            sizes[words[0]] = int(words[1])
        elif words:
            names.add(words[0])
    return names, sizes


def newest_version():
    """The version, or None and the reason."""
    try:
        text = run([sys.executable, "-m", "pip", "index", "versions", WHEEL, "--retries", "0",
                    "--timeout", "15", "--disable-pip-version-check"], SECONDS_TO_ASK)
    except (OSError, subprocess.SubprocessError) as error:
        lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        return None, lines[-1] if lines else "no answer"
    found = re.search(re.escape(WHEEL) + r" \(([0-9.]+)\)", text)
    return (found.group(1), "") if found else (None, "pip names no version")


def fetch(version, folder):
    """Leaves nccl.h and functions.txt in `folder`."""
    with tempfile.TemporaryDirectory() as place:
        run([sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:",
             "--no-cache-dir", "--disable-pip-version-check", "-d", place, f"{WHEEL}=={version}"],
            SECONDS_TO_FETCH)
        wheel = zipfile.ZipFile(os.path.join(place, os.listdir(place)[0]))
        members = {os.path.basename(name): name for name in wheel.namelist()}
        library = wheel.extract(members["libnccl.so.2"], place)
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "nccl.h"), "wb") as file:
            file.write(wheel.read(members["nccl.h"]))
        # What no header declares is for NCCL itself.
        declared = " ".join(wheel.read(name).decode("utf-8") for name in wheel.namelist()
                            if name.endswith(".h"))
        functions = functions_of(library) & set(re.findall(r"\bp?nccl[A-Z]\w*", declared))
        functions |= {"p" + name for name in functions if not name.startswith("p")}
        partial = os.path.join(folder, "functions.txt.partial")
        with open(partial, "w", encoding="utf-8") as file:
            file.write("\n".join(sorted(functions)) + "\n")
        os.replace(partial, os.path.join(folder, "functions.txt"))


def check_known(options):
    names, sizes = read_known(options.known)
    exported = functions_of(options.library)
    wanted = names | {"p" + name for name in names}
    faults = [f"{name} is not exported" for name in sorted(wanted - exported)]
    faults += [f"{name} is exported, and {options.known} does not list it"
               for name in sorted(exported - wanted)]
    own = sizes_by(options.compiler, ["-I", options.include])
    faults += [f"sizeof({name}) is {own.get(name)}, not {size}" for name, size in sizes.items()
               if own.get(name) != size]
    if len(names) < 90 or not sizes:
        faults.append(f"{options.known} has only {len(names)} names: has its form changed?")
    print(f"{len(names)} functions and {len(sizes)} structures of the known version compared")
    return faults


def check_newest(options, version):
    folder = os.path.join(options.cache, version)
    if not os.path.exists(os.path.join(folder, "functions.txt")):
        fetch(version, folder)
    theirs = set(read(os.path.join(folder, "functions.txt")).split())
    headers = os.path.join(options.cache, "cuda")
    os.makedirs(headers, exist_ok=True)
    for name, text in CUDA_HEADERS.items():
        with open(os.path.join(headers, name), "w", encoding="utf-8") as file:
            file.write("#pragma once\n" + text)
    include = ["-I", folder, "-I", headers]
    faults = [f"new in {version}: function {name}, which this library does not export"
              for name in sorted(theirs - functions_of(options.library))]
    missing = names_of(os.path.join(folder, "nccl.h")) - names_of(options.header)
    faults += [f"new in {version}: {name}, which this project's nccl.h does not have"
               for name in sorted(missing)]
    own = sizes_by(options.compiler, ["-I", options.include])
    for name, size in sizes_by(options.compiler, include).items():
        if own.get(name) != size:
            faults.append(f"sizeof({name}) is {size} in {version}, and {own.get(name)} here")
    checked = subprocess.run([options.compiler, "-x", "c++", "-std=c++20", "-fsyntax-only",
                              *include, "-I", options.tests, options.facts],
                             text=True, capture_output=True, check=False, timeout=120)
    if checked.returncode != 0:
        first = "\n".join(checked.stderr.splitlines()[:10])
        faults.append(f"the facts do not hold for nccl.h of {version}:\n{first}")
    print(f"{len(theirs)} exported functions of {WHEEL} {version} compared")
    return faults


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("against", choices=("known", "newest"))
    for name in ("library", "include", "header", "known", "compiler", "tests", "facts", "cache"):
        parser.add_argument("--" + name, required=True)
    options = parser.parse_args()
    if options.against == "known":
        faults = check_known(options)
    else:
        version, reason = newest_version()
        if version is None:
            print(f"skipped: pip cannot ask a package index for {WHEEL}: {reason}")
            return SKIPPED
        own = re.findall(r"#define NCCL_(?:MAJOR|MINOR|PATCH) (\d+)", read(options.header))
        if [int(part) for part in version.split(".")[:3]] < [int(part) for part in own]:
            print(f"skipped: the newest {WHEEL} that pip finds is {version}, and this project "
                  f"implements {'.'.join(own)}")
            return SKIPPED
        try:
            faults = check_newest(options, version)
        except subprocess.SubprocessError as error:
            if "download" not in str(error):
                raise
            print(f"skipped: pip cannot download {WHEEL} {version}: {error}")
            return SKIPPED
    for fault in faults:
        print("FAULT:", fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
