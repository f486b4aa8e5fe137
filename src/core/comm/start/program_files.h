// SPDX-License-Identifier: Apache-2.0
// ProgramFiles: the programs of a folder (WEIR_PROGRAMS), read and proved once per process, and
// what ranks tell each other so that all have the same. Values; thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/algo/imported.h"
#include "core/base/status.h"

namespace weir::comm {

// Limits of a folder.
inline constexpr size_t kProgramFilesMax = 64;
inline constexpr size_t kProgramFolderBytesMax = size_t{128} << 20;

struct ProgramFiles {
  std::vector<std::shared_ptr<const algo::Imported>> programs;  // in the order of the files' names
  // One line per file: its name and a hash of its bytes.
  std::string listing;

  // The algorithms of Weir and these programs.
  std::vector<const algo::Algorithm*> with_built_in() const;
};

// Reads a text of programs and proves them. `file`: for errors; `name`: of the algorithm.
Result<std::shared_ptr<const algo::Imported>> import_programs(std::string_view text,
                                                              std::string_view file,
                                                              const std::string& name);
// 16 hexadecimal digits.
std::string hash_of_program(std::string_view text);

// All *.json and *.xml in the folder; other files are passed over. An algorithm has the name of its
// file without the ending. The first call for a folder reads it, later ones get the same result.
// The error names the file. "": no programs.
Result<ProgramFiles> load_program_files(const std::string& folder);

// How the listings of two ranks differ: a sentence that names the first file of which one is
// missing or another one; "" when they are equal.
std::string program_difference(Rank a, std::string_view of_a, Rank b, std::string_view of_b);

}  // namespace weir::comm
