// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/program_files.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>

#include "core/algo/program_text.h"
#include "core/base/per_process.h"
#include "core/base/printable.h"
#include "core/base/private_files.h"
#include "core/engine/mapped_check.h"

namespace weir::comm {
namespace {

// Of names of files in errors.
constexpr size_t kShownBytesMax = 400;

std::string shown(std::string_view text) { return printable(text, kShownBytesMax); }

Result<ProgramFiles> read_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  if (error) {
    return Status(Code::kSystem, fmt::format("cannot read the folder '{}': {}; name a folder that "
                                             "holds programs (*.json, *.xml)",
                                             shown(folder), error.message()));
  }
  std::vector<std::filesystem::path> paths;
  for (; entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    if (error) break;
    const std::filesystem::path& path = entries->path();
    if (path.extension() != ".json" && path.extension() != ".xml") continue;
    paths.push_back(path);
    if (paths.size() > kProgramFilesMax) {
      return invalid_argument(fmt::format("'{}' holds more than {} files of programs",
                                          shown(folder), kProgramFilesMax));
    }
  }
  if (error) {
    return Status(Code::kSystem,
                  fmt::format("cannot read the folder '{}': {}", shown(folder), error.message()));
  }
  std::sort(paths.begin(), paths.end());
  ProgramFiles files;
  std::map<std::string, std::string> file_of_name;
  size_t bytes_left = kProgramFolderBytesMax;
  for (const std::filesystem::path& path : paths) {
    const Result<std::string> text =
        read_any_file(path.string(), std::min(bytes_left, algo::kProgramTextBytesMax));
    if (!text.ok()) return text.status();
    bytes_left -= text.value().size();
    const std::string file = path.filename().string();
    const std::string name = path.stem().string();
    const auto [other, is_new] = file_of_name.emplace(name, file);
    if (!is_new) {
      return invalid_argument(
          fmt::format("'{}' and '{}' give two sets of programs the same name; "
                      "rename one",
                      shown(other->second), shown(file)));
    }
    auto imported = import_programs(text.value(), shown(path.string()), name);
    if (!imported.ok()) return imported.status();
    files.programs.push_back(imported.take());
    files.listing += fmt::format("{} {}\n", hash_of_program(text.value()), file);
  }
  return files;
}

struct Known {
  std::mutex lock;
  std::map<std::string, Result<ProgramFiles>> folders;
};
constinit PerProcess<Known> known;

// Takes the first line of `listing`: hash and file.
std::pair<std::string_view, std::string_view> take_line(std::string_view* listing) {
  const size_t end = std::min(listing->find('\n'), listing->size());
  const std::string_view line = listing->substr(0, end);
  listing->remove_prefix(std::min(end + 1, listing->size()));
  const size_t space = std::min(line.find(' '), line.size());
  return {line.substr(0, space), line.substr(std::min(space + 1, line.size()))};
}

std::map<std::string_view, std::string_view> files_of(std::string_view listing) {
  std::map<std::string_view, std::string_view> files;
  while (!listing.empty()) {
    const auto [hash, file] = take_line(&listing);
    files.emplace(file, hash);
  }
  return files;
}

}  // namespace

std::vector<const algo::Algorithm*> ProgramFiles::with_built_in() const {
  const auto built_in = algo::all_algorithms();
  std::vector<const algo::Algorithm*> all(built_in.begin(), built_in.end());
  for (const auto& program : programs) all.push_back(&program->algorithm());
  return all;
}

Result<std::shared_ptr<const algo::Imported>> import_programs(std::string_view text,
                                                              std::string_view file,
                                                              const std::string& name) {
  auto read = algo::read_programs(text, file);
  if (!read.ok()) return read.status();
  const algo::ProgramText programs = read.take();
  auto imported = algo::Imported::make(programs.set, name);
  Status status = imported.status();
  if (imported.ok()) status = engine::check_mapped(*imported.value());
  if (status.ok()) return imported;
  return Status(status.code(),
                fmt::format("{}: {}", file, algo::with_origins(status.text(), programs)));
}

std::string hash_of_program(std::string_view text) {
  return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

Result<ProgramFiles> load_program_files(const std::string& folder) {
  if (folder.empty()) return ProgramFiles();
  Known& mine = known.get();
  const std::lock_guard guard(mine.lock);
  const auto found = mine.folders.find(folder);
  if (found != mine.folders.end()) return found->second;
  return mine.folders.emplace(folder, read_folder(folder)).first->second;
}

std::string program_difference(Rank a, std::string_view of_a, Rank b, std::string_view of_b) {
  if (of_a == of_b) return "";
  const auto files_a = files_of(of_a);
  const auto files_b = files_of(of_b);
  for (const auto& [file, hash] : files_a) {
    const auto found = files_b.find(file);
    if (found == files_b.end()) {
      return fmt::format("rank {} has '{}', rank {} does not", a, shown(file), b);
    }
    if (found->second != hash) {
      return fmt::format("'{}' of rank {} (hash {}) is not that of rank {} (hash {})", shown(file),
                         a, shown(hash), b, shown(found->second));
    }
  }
  for (const auto& [file, hash] : files_b) {
    if (files_a.find(file) == files_a.end()) {
      return fmt::format("rank {} has '{}', rank {} does not", b, shown(file), a);
    }
  }
  return fmt::format("the lists of ranks {} and {} differ", a, b);
}

}  // namespace weir::comm
