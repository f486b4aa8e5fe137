// SPDX-License-Identifier: Apache-2.0
#include "hostcuda/core/topology_file.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>

#include "hostcuda/core/settings.h"

namespace weir::hostcuda {

namespace {

constexpr size_t kFileBytesMax = size_t{16} << 20;
constexpr size_t kDepthMax = 64;
constexpr unsigned kLinksMax = 64;

using Attributes = std::map<std::string, std::string, std::less<>>;

// One tag: "<name a="b">", "</name>" or "<name/>".
struct Tag {
  std::string name;
  Attributes attributes;
  bool opens = true;
  bool closes = false;
};

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// The next tag from `at`, which moves behind it; comments and declarations are skipped. False at
// the end.
bool next_tag(std::string_view text, size_t* at, Tag* tag) {
  *tag = {};
  while (true) {
    size_t begin = text.find('<', *at);
    if (begin == std::string_view::npos) return false;
    const bool comment = text.substr(begin).starts_with("<!--");
    const bool declaration =
        !comment && begin + 1 < text.size() && (text[begin + 1] == '?' || text[begin + 1] == '!');
    const std::string_view end_mark = comment ? "-->" : ">";
    if (comment || declaration) {
      const size_t end = text.find(end_mark, begin);
      if (end == std::string_view::npos) return false;
      *at = end + end_mark.size();
      continue;
    }
    ++begin;
    if (begin < text.size() && text[begin] == '/') {
      tag->opens = false;
      tag->closes = true;
      ++begin;
    }
    size_t i = begin;
    const auto word = [&](std::string_view stops) {
      const size_t from = i;
      while (i < text.size() && !is_space(text[i]) && stops.find(text[i]) == stops.npos) ++i;
      return std::string(text.substr(from, i - from));
    };
    tag->name = word("/>");
    while (i < text.size() && text[i] != '>') {
      if (text[i] == '/') tag->closes = true;
      if (is_space(text[i]) || text[i] == '/') {
        ++i;
        continue;
      }
      const std::string name = word("=/>");
      if (i + 1 >= text.size()) return false;
      if (text[i] != '=') continue;
      const char quote = text[i + 1];
      const size_t end = quote == '"' || quote == '\'' ? text.find(quote, i + 2) : text.npos;
      if (end == text.npos) return false;
      tag->attributes[name] = std::string(text.substr(i + 2, end - i - 2));
      i = end + 1;
    }
    if (i >= text.size()) return false;
    *at = i + 1;
    return true;
  }
}

std::string value_of(const Attributes& attributes, std::string_view name) {
  const auto found = attributes.find(name);
  return found == attributes.end() ? std::string() : found->second;
}

// Of NVIDIA's and AMD's GPUs.
bool is_gpu_class(const std::string& text) {
  return text.starts_with("0x0302") || text.starts_with("0x0300") || text.starts_with("0x0380");
}

class Reader {
 public:
  std::vector<PlacedGpu> read(std::string_view text) {
    size_t at = 0;
    Tag tag;
    while (next_tag(text, &at, &tag)) {
      if (tag.opens && !open(tag)) return {};
      if (tag.closes && !open_.empty()) close();
    }
    const bool numbered = std::all_of(gpus_.begin(), gpus_.end(),
                                      [](const PlacedGpu& gpu) { return gpu.number >= 0; });
    std::stable_sort(gpus_.begin(), gpus_.end(), [&](const PlacedGpu& a, const PlacedGpu& b) {
      return numbered ? a.number < b.number : a.address < b.address;
    });
    return std::move(gpus_);
  }

 private:
  struct Open {
    int number;
    std::string name;
    Attributes attributes;
    int gpu = -1;  // which of gpus_ this element is
  };

  bool open(const Tag& tag) {
    if (open_.size() >= kDepthMax) return false;
    open_.push_back({count_++, tag.name, tag.attributes});
    Open* const parent = open_.size() > 1 ? &open_[open_.size() - 2] : nullptr;
    if (tag.name == "pci" && is_gpu_class(value_of(tag.attributes, "class"))) add_gpu(open_.size());
    if (tag.name == "gpu" && parent != nullptr && parent->name == "pci") {
      if (parent->gpu < 0) add_gpu(open_.size() - 1);
      const std::string number = value_of(tag.attributes, "dev");
      if (parent->gpu >= 0 && !number.empty()) {
        gpus_[static_cast<size_t>(parent->gpu)].number = std::atoi(number.c_str());
      }
    }
    if ((tag.name == "nvlink" || tag.name == "xgmi") && open_.size() > 2) {
      add_links(open_[open_.size() - 3].gpu, tag.attributes);
    }
    return true;
  }

  void close() { open_.pop_back(); }

  // The open element at `depth` - 1 is a GPU.
  void add_gpu(size_t depth) {
    Open& own = open_[depth - 1];
    PlacedGpu gpu;
    if (!parse_pci(value_of(own.attributes, "busid").c_str(), &gpu.address)) return;
    for (size_t i = 0; i + 1 < depth; ++i) {
      gpu.above.push_back({open_[i].number, open_[i].name == "pci"});
      if (open_[i].name == "cpu") gpu.affinity = value_of(open_[i].attributes, "affinity");
    }
    own.gpu = static_cast<int>(gpus_.size());
    gpus_.push_back(std::move(gpu));
  }

  void add_links(int gpu, const Attributes& attributes) {
    NvLinks links;
    const int count = std::atoi(value_of(attributes, "count").c_str());
    if (gpu < 0 || count <= 0) return;
    if (!parse_pci(value_of(attributes, "target").c_str(), &links.target)) return;
    links.to_switch = value_of(attributes, "tclass").starts_with("0x0680");
    links.count = std::min(static_cast<unsigned>(count), kLinksMax);
    gpus_[static_cast<size_t>(gpu)].links.push_back(links);
  }

  int count_ = 0;
  std::vector<Open> open_;
  std::vector<PlacedGpu> gpus_;
};

std::vector<PlacedGpu> read_file() {
  const char* const path = std::getenv("WEIR_TOPOLOGY_FILE");
  const auto wanted = static_cast<size_t>(device_settings().machine_count);
  if (path == nullptr || *path == '\0') return {};
  std::string text;
  std::ifstream file(path, std::ios::binary);
  if (file) {
    text.resize(kFileBytesMax);
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<size_t>(file.gcount()));
  }
  std::vector<PlacedGpu> gpus = read_topology(text);
  if (gpus.size() < wanted) {
    std::fprintf(stderr,
                 "hostcuda: WEIR_TOPOLOGY_FILE '%s' has %zu GPUs in NCCL's form, and there are %zu "
                 "devices: they keep PCI addresses of their own. Lower WEIR_HOSTCUDA_DEVICES, or "
                 "write the file with weir-topo in NCCL's form.\n",
                 path, gpus.size(), wanted);
    return {};
  }
  gpus.resize(wanted);
  return gpus;
}

}  // namespace

bool parse_pci(const char* text, PciAddress* address) {
  PciAddress read;
  int used = 0;
  if (std::sscanf(text, "%x:%x:%x%n", &read.domain, &read.bus, &read.device, &used) != 3) {
    read.domain = 0;
    if (std::sscanf(text, "%x:%x%n", &read.bus, &read.device, &used) != 2) return false;
  }
  if (text[used] != '\0' && std::strcmp(text + used, ".0") != 0) return false;
  *address = read;
  return true;
}

std::vector<PlacedGpu> read_topology(std::string_view text) { return Reader().read(text); }

const std::vector<PlacedGpu>& placed_gpus() {
  static const auto* const gpus = new std::vector<PlacedGpu>(read_file());
  return *gpus;
}

}  // namespace weir::hostcuda
