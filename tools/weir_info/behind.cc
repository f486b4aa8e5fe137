// SPDX-License-Identifier: Apache-2.0
#include "weir_info/behind.h"

#include <dlfcn.h>

#include <nlohmann/json.hpp>

#include "nccl/cuda/device_query.h"
#include "nccl/real/found_functions.h"
#include "weir_info/run_program.h"

namespace weir::info {
namespace {

using Json = nlohmann::json;

constexpr int kLookMs = 60'000;  // a driver may start slowly where there are many devices

Json look(const nccl::LoadingProcess& process, const std::string& driver) {
  Json seen;
  // Later lookups by name find this one.
  if (!driver.empty()) (void)dlopen(driver.c_str(), RTLD_NOW | RTLD_LOCAL);
  const nccl::RequestedOptions requested = nccl::requested_options_of_environment();
  std::string reason;
  if (!nccl::looks_for_real(requested, &reason)) seen["not_looked"] = reason;
  reason.clear();
  seen["devices"] = nccl::cuda_device_count(&reason);
  seen["no_devices"] = reason;

  nccl::RealFunctions functions;
  const auto accept = [&](void* library, const std::string&, std::string* why) {
    return nccl::find_functions(library, &functions, why);
  };
  const nccl::OpenedNccl opened = nccl::open_real_nccl(requested.library, accept, &reason, process);
  seen["refused"] = Json::array();
  for (const nccl::Refused& one : opened.refused) {
    seen["refused"].push_back({one.path, one.found_by, one.why});
  }
  if (opened.library == nullptr) return seen;
  seen["path"] = opened.path;
  seen["found_by"] = opened.found_by;
  seen["version"] = functions.version;
  seen["missing"] = Json::array();
  for (unsigned i = 0; i < std::size(functions.found); ++i) {
    if (functions.found[i] != nullptr) continue;
    const nccl::FunctionInfo& info = nccl::kFunctions[i];
    seen["missing"].push_back(std::string(info.name) + " (since " + info.since + ")");
  }
  return seen;
}

}  // namespace

Behind look_behind(const nccl::LoadingProcess& process, const std::string& driver) {
  Behind behind;
  behind.requested = nccl::requested_options_of_environment();
  const auto answer = answer_of_fork(
      [&] { return look(process, driver).dump(-1, ' ', false, Json::error_handler_t::replace); },
      kLookMs);
  if (!answer.ok()) {
    behind.trouble = answer.status().text();
    return behind;
  }
  const Json seen = Json::parse(answer.value(), nullptr, false);
  if (!seen.is_object()) {
    behind.trouble = "its answer cannot be read";
    return behind;
  }
  behind.not_looked = seen.value("not_looked", "");
  behind.devices = seen.value("devices", 0);
  behind.no_devices = seen.value("no_devices", "");
  for (const Json& one : seen["refused"]) behind.refused.push_back({one[0], one[1], one[2]});
  behind.path = seen.value("path", "");
  behind.found_by = seen.value("found_by", "");
  behind.version = seen.value("version", 0);
  behind.missing = seen.value("missing", std::vector<std::string>());
  return behind;
}

}  // namespace weir::info
