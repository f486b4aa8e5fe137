// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "nccl/real/found_functions.h"
#include "weir_info/doctor.h"

namespace weir::info {
namespace {

constexpr const char* kInstallNccl =
    "install NVIDIA's libnccl2, or name its file: WEIR_NCCL_LIBRARY";

Check judge_real(const Behind& it) {
  if (!it.path.empty()) {
    return {Verdict::kGood, "real NCCL",
            fmt::format("{}, {} ({})", nccl::version_text(it.version), it.path, it.found_by), ""};
  }
  const bool forced =
      it.requested.disabled || it.requested.backend == nccl::RequestedBackend::kNccl;
  const bool wanted = it.not_looked.empty() && it.devices > 0;
  return {forced   ? Verdict::kBad
          : wanted ? Verdict::kNote
                   : Verdict::kGood,
          "real NCCL",
          it.requested.library.empty()
              ? "none beside a framework, on LD_LIBRARY_PATH, in the CUDA toolkit or by the loader"
              : "none: nothing but WEIR_NCCL_LIBRARY is tried",
          forced || wanted ? kInstallNccl : ""};
}

// A program refers to "ncclCommShrink (since 2.27.3)" as ncclCommShrink or pncclCommShrink.
bool is_wanted(const std::string& missing, const std::vector<std::string>& wanted) {
  const std::string name = missing.substr(0, missing.find(' '));
  return std::any_of(wanted.begin(), wanted.end(),
                     [&](const std::string& one) { return one == name || one == "p" + name; });
}

Check judge_real_symbols(const Behind& it, const std::vector<std::string>& wanted) {
  std::vector<std::string> asked;
  for (const std::string& missing : it.missing) {
    if (is_wanted(missing, wanted)) asked.push_back(missing);
  }
  if (!asked.empty()) {
    return {it.not_looked.empty() && it.devices > 0 ? Verdict::kBad : Verdict::kNote, "its symbols",
            fmt::format("the program needs {}, which the real NCCL lacks", list_of(asked)),
            "calls of these return ncclInvalidUsage on its communicators: install a newer NCCL"};
  }
  if (it.missing.empty()) return {Verdict::kGood, "its symbols", "all through 2.32 are there", ""};
  return {Verdict::kGood, "its symbols",
          fmt::format("{} of {} through 2.32 are there; calls of the others return "
                      "ncclInvalidUsage on its communicators: {}",
                      std::size(nccl::kFunctions) - it.missing.size(), std::size(nccl::kFunctions),
                      list_of(it.missing)),
          ""};
}

Check judge_work(const Behind& it) {
  const char* subject = "backend";
  const bool found = !it.path.empty();
  const std::string no_device = it.devices > 0 ? "" : it.no_devices;
  if (it.requested.disabled) {
    if (!found) {
      return {Verdict::kBad, subject,
              "none: WEIR_DISABLE passes every call to the real NCCL, which was not found",
              "unset WEIR_DISABLE"};
    }
    return {no_device.empty() ? Verdict::kGood : Verdict::kBad, subject,
            "the real NCCL for every call: WEIR_DISABLE is set" +
                (no_device.empty() ? "" : ", but " + no_device),
            no_device.empty() ? "" : "unset WEIR_DISABLE"};
  }
  if (it.requested.backend == nccl::RequestedBackend::kNccl) {
    if (found && no_device.empty())
      return {Verdict::kGood, subject, "the real NCCL, or an error: WEIR_BACKEND=nccl", ""};
    return {
        Verdict::kBad, subject,
        fmt::format("none: WEIR_BACKEND=nccl, but {}", found ? no_device : "there is no real NCCL"),
        "unset WEIR_BACKEND"};
  }
  if (found && it.not_looked.empty() && no_device.empty()) {
    return {Verdict::kGood, subject,
            fmt::format("the real NCCL for communicators whose ranks have a GPU each and the same "
                        "NCCL, Weir's transports for others ({} here)",
                        it.devices == 1 ? "1 GPU" : fmt::format("{} GPUs", it.devices)),
            ""};
  }
  const std::string why = !it.not_looked.empty() ? it.not_looked
                          : !no_device.empty()   ? no_device
                                                 : "there is no real NCCL";
  return {Verdict::kGood, subject, "Weir's transports: " + why, ""};
}

}  // namespace

std::vector<Check> judge_behind(const Behind& behind, const std::vector<std::string>& wanted) {
  if (!behind.trouble.empty()) {
    return {{Verdict::kBad, "real NCCL", "the search for it did not end: " + behind.trouble,
             "a file of that name, or libcuda.so.1, is damaged: WEIR_LOG=info ./program names it; "
             "WEIR_NCCL_LIBRARY may name another"}};
  }
  std::vector<Check> checks;
  for (const nccl::Refused& one : behind.refused) {
    const bool named = !behind.requested.library.empty();
    checks.push_back({named ? Verdict::kBad : Verdict::kGood,
                      named ? "WEIR_NCCL_LIBRARY" : "passed over",
                      named ? fmt::format("{}: {}", one.path, one.why)
                            : fmt::format("{} ({}): {}", one.path, one.found_by, one.why),
                      named ? "name NVIDIA's file, or unset it" : ""});
  }
  checks.push_back(judge_real(behind));
  if (!behind.path.empty()) checks.push_back(judge_real_symbols(behind, wanted));
  checks.push_back(judge_work(behind));
  return checks;
}

}  // namespace weir::info
