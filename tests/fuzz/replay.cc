// SPDX-License-Identifier: Apache-2.0
// main() of a fuzz target in builds without libFuzzer: gives it the empty input, every file of the
// folders named as arguments, and every such file cut short at a few places.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes);

namespace {

// A copy of exactly this length, so that a sanitizer sees each byte read beyond it.
void run(const std::vector<char>& input, size_t bytes) {
  const std::vector<uint8_t> exact(input.begin(), input.begin() + static_cast<ptrdiff_t>(bytes));
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

}  // namespace

int main(int argc, char** argv) {
  size_t file_count = 0;
  run({}, 0);
  for (int i = 1; i < argc; ++i) {
    std::error_code error;
    const std::filesystem::recursive_directory_iterator folder(argv[i], error);
    if (error) {
      std::fprintf(stderr, "%s: %s\n", argv[i], error.message().c_str());
      return 1;
    }
    for (const auto& entry : folder) {
      if (!entry.is_regular_file()) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      const std::vector<char> input{std::istreambuf_iterator<char>(file), {}};
      run(input, input.size());
      for (size_t part = 1; part < 16; ++part) run(input, input.size() * part / 16);
      ++file_count;
    }
  }
  std::printf("replayed %zu files\n", file_count);
  return file_count == 0 ? 1 : 0;
}
