// SPDX-License-Identifier: Apache-2.0
// What a shared object or program declares: the libraries it needs, its search paths, the symbols
// it refers to and those it exports. The file is not run, and nothing in it is trusted.
//
// Source: System V ABI, chapters 4 and 5 (ELF, dynamic section); for 64-bit little-endian files.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace weir::info {

struct ElfFile {
  std::string interpreter;  // the loader that it requests; "" for most libraries
  std::string soname;
  std::vector<std::string> needed;
  std::string rpath;    // folders separated by ':'; has no effect where there is a runpath
  std::string runpath;  // the same
  std::set<std::string> imported;
  std::set<std::string> exported;
};

// An error names the file and its fault: missing, not an ELF file, for another kind of processor,
// damaged.
Result<ElfFile> read_elf_file(const std::string& path);

// The same for the bytes of a file; `name` appears in error texts.
Result<ElfFile> parse_elf_file(std::string_view bytes, const std::string& name);

}  // namespace weir::info
