// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/named_algorithms.h"

#include <filesystem>
#include <system_error>

namespace weir::comm {
namespace {

// Opening a FIFO would wait for a program that writes into it.
Result<cost::Rules> read_rules(const std::string& path,
                               const std::vector<const algo::Algorithm*>& known) {
  if (path.empty()) return cost::Rules{};
  std::error_code ignored;
  const auto kind = std::filesystem::status(path, ignored).type();
  const bool regular = kind == std::filesystem::file_type::regular;
  if (std::filesystem::exists(std::filesystem::file_status(kind)) && !regular) {
    return invalid_argument("'" + path + "' is not a regular file; name a file of rules");
  }
  return cost::load_rules(path, known);
}

}  // namespace

NamedAlgorithms read_named_algorithms(const Settings& settings) {
  NamedAlgorithms named;
  auto programs = load_program_files(settings.programs);
  named.programs_status = programs.status().with_context("WEIR_PROGRAMS");
  if (programs.ok()) named.programs = programs.take();
  const std::vector<const algo::Algorithm*> known = named.programs.with_built_in();
  auto forced = engine::parse_forced_algorithms(settings.algorithm, known);
  auto rules = read_rules(settings.tuning_file, known);
  named.names_status =
      forced.ok() ? rules.status().with_context("WEIR_TUNING_FILE") : forced.status();
  if (forced.ok()) named.forced = forced.take();
  if (rules.ok()) named.rules = rules.take();
  return named;
}

}  // namespace weir::comm
