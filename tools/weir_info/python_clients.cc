// SPDX-License-Identifier: Apache-2.0
#include "weir_info/python_clients.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>

#include "weir_info/elf_file.h"
#include "weir_info/run_program.h"

namespace weir::info {
namespace {

namespace fs = std::filesystem;

constexpr int kPythonMs = 20'000;
constexpr const char* kWheel = "nvidia/nccl/lib";

// Where a package's library lies below a folder of packages; `file` is the beginning of its name,
// which for an extension module goes on with the interpreter's.
struct KnownClient {
  const char* name;
  const char* folder;
  const char* file;
  PythonLoads loads;
};
constexpr KnownClient kKnownClients[] = {
    {"PyTorch", "torch/lib", "libtorch_cuda.so", PythonLoads::kByLoader},
    {"JAX", "jax_plugins/xla_cuda13", "xla_cuda_plugin.so", PythonLoads::kByLoader},
    {"JAX", "jax_plugins/xla_cuda12", "xla_cuda_plugin.so", PythonLoads::kByLoader},
    {"CuPy", "cupy_backends/cuda/libs", "nccl.", PythonLoads::kWheelByPath},
    {"nccl4py", "nccl/bindings/_internal", "nccl.", PythonLoads::kWheelByPath},
};

std::vector<std::string> parts_of(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

std::optional<std::string> file_in(const fs::path& folder, const std::string& beginning) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with(beginning) && name.find(".so") != std::string::npos)
      return entry->path().string();
  }
  return std::nullopt;
}

bool is_same_file(const std::string& one, const std::string& other) {
  std::error_code error;
  return fs::equivalent(one, other, error);
}

// The first `name` of Weir's that LD_LIBRARY_PATH names.
std::string weirs_on_library_path(const std::string& name) {
  const char* folders = std::getenv("LD_LIBRARY_PATH");
  std::error_code error;
  for (const std::string& folder : parts_of(folders == nullptr ? "" : folders, ':')) {
    const std::string path = fs::absolute(folder, error) / name;
    if (!fs::is_regular_file(path, error)) continue;
    return is_weirs(path) ? fs::path(path).lexically_normal().string() : "";
  }
  return "";
}

}  // namespace

PythonPackages packages_of_python(const std::string& program) {
  PythonPackages packages;
  const auto output = run_program(
      {"/usr/bin/env", program, "-c", "import sys; print('\\n'.join(p for p in sys.path if p))"},
      {}, kPythonMs);
  if (!output.ok() || output.value().exit_code != 0) return packages;
  std::error_code error;
  for (const std::string& folder : parts_of(output.value().out, '\n')) {
    const std::string wheel = (fs::path(folder) / kWheel / kNcclName).string();
    if (packages.nccl.empty() && fs::is_regular_file(wheel, error)) packages.nccl = wheel;
    for (const KnownClient& known : kKnownClients) {
      // The first folder of Python's path counts.
      const bool there = std::any_of(packages.clients.begin(), packages.clients.end(),
                                     [&](const auto& client) { return client.name == known.name; });
      if (there) continue;
      const auto file = file_in(fs::path(folder) / known.folder, known.file);
      if (file) packages.clients.push_back({known.name, *file, known.loads});
    }
  }
  return packages;
}

Result<Loading> nccl_of(const PythonClient& client, const std::string& wheel) {
  auto loading = nccl_of(client.object);
  if (!loading.ok() || client.loads == PythonLoads::kByLoader || wheel.empty()) return loading;
  // A library of this name that is loaded already goes before the wheel's file.
  if (loading.value().reason == kReasonOfPreload) return loading;
  loading.value().path = wheel;
  loading.value().reason = client.name + " opens the wheel's file by its path";
  return loading;
}

std::vector<Shadowed> shadowed_by(const Loading& loading) {
  std::vector<Shadowed> shadowed;
  for (const char* name : {kNcclName, "libcudart.so.13", "libcuda.so.1"}) {
    const std::string wanted = weirs_on_library_path(name);
    const std::string loaded =
        name == std::string(kNcclName) ? loading.path : path_linked(loading.object, name);
    if (!wanted.empty() && !loaded.empty() && !is_same_file(wanted, loaded))
      shadowed.push_back({wanted, loaded});
  }
  return shadowed;
}

}  // namespace weir::info
