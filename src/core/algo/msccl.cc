// SPDX-License-Identifier: Apache-2.0
#include "core/algo/msccl.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "core/algo/imported.h"
#include "core/algo/msccl_algo.h"
#include "core/topo/xml_reader.h"

namespace weir::algo {
namespace {

using topo::XmlReader;

constexpr int64_t kChunksMax = kImportedOpCountMax;
constexpr uint32_t kStepsMax = kImportedOpCountMax;

constexpr std::pair<std::string_view, MscclType> kTypes[] = {
    {"s", MscclType::kSend},    {"r", MscclType::kRecv},    {"cpy", MscclType::kCopy},
    {"re", MscclType::kReduce}, {"rrc", MscclType::kRrc},   {"rcs", MscclType::kRcs},
    {"rrs", MscclType::kRrs},   {"rrcs", MscclType::kRrcs}, {"nop", MscclType::kNop},
};

constexpr std::pair<std::string_view, Collective> kCollectives[] = {
    {"allreduce", Collective::kAllReduce},
    {"allgather", Collective::kAllGather},
    {"reduce_scatter", Collective::kReduceScatter},
    {"reducescatter", Collective::kReduceScatter},
    {"alltoall", Collective::kAllToAll},
};

// The first error is kept; reads after it do nothing.
class Reader {
 public:
  explicit Reader(const XmlReader& xml) : xml_(xml) {}

  Status status;

  bool ok() const { return status.ok(); }
  void fail(pugi::xml_node node, const std::string& text) {
    if (ok()) status = xml_.error(node, text);
  }

  // `otherwise`: what a missing attribute means; nullopt: it must be there.
  int64_t number(pugi::xml_node node, const char* attribute, int64_t min, int64_t max,
                 std::optional<int64_t> otherwise = std::nullopt) {
    if (!ok()) return 0;
    const auto value = xml_.integer(node, attribute, min, max);
    if (!value.ok()) {
      status = value.status();
      return 0;
    }
    if (value.value()) return *value.value();
    if (otherwise) return *otherwise;
    fail(node, fmt::format("<{}> has no {}", node.name(), attribute));
    return 0;
  }

  std::string_view text(pugi::xml_node node, const char* attribute) {
    const auto value = XmlReader::text(node, attribute);
    if (!value) fail(node, fmt::format("<{}> has no {}", node.name(), attribute));
    return value.value_or("");
  }

  MscclAlgo read() {
    MscclAlgo algo;
    const pugi::xml_node root = xml_.root();
    if (std::string_view(root.name()) != "algo") {
      fail(root, "the first element is not <algo>: this is no XML of MSCCL");
      return algo;
    }
    const std::string_view coll = text(root, "coll");
    bool known = false;
    for (const auto& [name, collective] : kCollectives) {
      if (name != coll) continue;
      algo.collective = collective;
      known = true;
    }
    if (!known) {
      fail(root, fmt::format("coll=\"{}\" cannot be imported; allreduce, allgather, "
                             "reduce_scatter and alltoall can (the format names no root): write "
                             "the programs as JSON",
                             shown(coll)));
    }
    algo.in_place = number(root, "inplace", 0, 1, 0) != 0;
    const auto gpu_count = static_cast<size_t>(number(root, "ngpus", 1, kImportedRankCountMax));
    if (!ok()) return algo;
    algo.gpus.resize(gpu_count);
    std::vector<bool> seen(gpu_count, false);
    for (const pugi::xml_node child : root.children()) {
      if (child.type() != pugi::node_element) continue;
      if (std::string_view(child.name()) != "gpu") {
        fail(child,
             fmt::format("<{}> is unknown in <algo>, which holds <gpu>", shown(child.name())));
      }
      const auto id =
          static_cast<size_t>(number(child, "id", 0, static_cast<int64_t>(gpu_count) - 1));
      if (ok() && seen[id]) fail(child, fmt::format("a second <gpu id=\"{}\">", id));
      if (!ok()) return algo;
      seen[id] = true;
      read_gpu(child, gpu_count, &algo.gpus[id]);
    }
    for (size_t id = 0; ok() && id < gpu_count; ++id) {
      if (!seen[id]) fail(root, fmt::format("there is no <gpu id=\"{}\">, of {}", id, gpu_count));
    }
    return algo;
  }

 private:
  static std::string shown(std::string_view text) {
    std::string out;
    for (const char c : text.substr(0, 40)) {
      out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
    }
    return out;
  }

  void read_gpu(pugi::xml_node node, size_t gpu_count, MscclGpu* gpu) {
    gpu->input_chunks = static_cast<uint32_t>(number(node, "i_chunks", 0, kChunksMax));
    gpu->output_chunks = static_cast<uint32_t>(number(node, "o_chunks", 0, kChunksMax));
    gpu->scratch_chunks = static_cast<uint32_t>(number(node, "s_chunks", 0, kChunksMax));
    std::map<int64_t, int32_t> index_of_id;
    std::vector<std::pair<pugi::xml_node, uint32_t>> nodes;
    for (const pugi::xml_node child : node.children()) {
      if (child.type() != pugi::node_element || !ok()) continue;
      const std::string_view name = child.name();
      if (name == "copy") {
        gpu->copies.push_back({static_cast<uint32_t>(number(child, "i_off", 0, kChunksMax)),
                               static_cast<uint32_t>(number(child, "o_off", 0, kChunksMax)),
                               xml_.line(child)});
        count_chunks(child, 1);
      } else if (name == "tb") {
        const auto rank_max = static_cast<int64_t>(gpu_count) - 1;
        MscclBlock block;
        block.id = static_cast<uint32_t>(number(child, "id", 0, kStepsMax));
        block.send = static_cast<int32_t>(number(child, "send", -1, rank_max));
        block.recv = static_cast<int32_t>(number(child, "recv", -1, rank_max));
        block.channel = static_cast<int32_t>(number(child, "chan", -1, kStepsMax));
        block.line = xml_.line(child);
        const auto index = static_cast<int32_t>(gpu->blocks.size());
        if (ok() && !index_of_id.emplace(block.id, index).second) {
          fail(child, fmt::format("a second <tb id=\"{}\"> of this gpu", block.id));
        }
        gpu->blocks.push_back(std::move(block));
        nodes.emplace_back(child, static_cast<uint32_t>(index));
      } else {
        fail(child,
             fmt::format("<{}> is unknown in <gpu>, which holds <tb> and <copy>", shown(name)));
      }
    }
    for (const auto& [child, index] : nodes) read_steps(child, index_of_id, &gpu->blocks[index]);
    for (const auto& [child, index] : nodes) check_dependences(child, *gpu, index);
  }

  void count_chunks(pugi::xml_node node, uint32_t count) {
    chunk_moves_ += std::max(1u, count);
    if (chunk_moves_ > kImportedOpCountMax) {
      fail(node, fmt::format("all steps together move more than {} chunks", kImportedOpCountMax));
    }
  }

  void read_steps(pugi::xml_node block_node, const std::map<int64_t, int32_t>& index_of_id,
                  MscclBlock* block) {
    for (const pugi::xml_node node : block_node.children()) {
      if (node.type() != pugi::node_element || !ok()) continue;
      if (std::string_view(node.name()) != "step") {
        fail(node, fmt::format("<{}> is unknown in <tb>, which holds <step>", shown(node.name())));
        return;
      }
      for (const std::string& name :
           XmlReader::unknown_attributes(node, {"s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff",
                                                "cnt", "depid", "deps", "hasdep"})) {
        fail(node, fmt::format("<step> has an unknown attribute {}", shown(name)));
      }
      const int64_t number_of_step = number(node, "s", 0, kStepsMax);
      if (ok() && number_of_step != static_cast<int64_t>(block->steps.size())) {
        fail(node, fmt::format("s=\"{}\" must be {}: steps stand in their order", number_of_step,
                               block->steps.size()));
      }
      MscclStep step;
      step.line = xml_.line(node);
      read_type(node, &step);
      step.count = static_cast<uint32_t>(number(node, "cnt", 0, kChunksMax));
      count_chunks(node, step.count);
      if (ok() && step.type != MscclType::kNop && step.count == 0) fail(node, "cnt is 0");
      if (msccl_reads_src(step.type)) step.src = read_place(node, "srcbuf", "srcoff");
      if (msccl_writes_dst(step.type)) step.dst = read_place(node, "dstbuf", "dstoff");
      if (ok() && msccl_sends(step.type) && block->send < 0) {
        fail(node, fmt::format("sends, but its block {} has send=\"-1\"", block->id));
      }
      if (ok() && msccl_receives(step.type) && block->recv < 0) {
        fail(node, fmt::format("receives, but its block {} has recv=\"-1\"", block->id));
      }
      const int64_t depends_id = number(node, "depid", -1, kStepsMax, -1);
      const int64_t depends_step = number(node, "deps", -1, kStepsMax, -1);
      if (ok() && depends_id >= 0) {
        const auto found = index_of_id.find(depends_id);
        if (found == index_of_id.end() || depends_step < 0) {
          fail(node, fmt::format("waits for step {} of block {}, which this gpu does not have",
                                 depends_step, depends_id));
          return;
        }
        step.depends_block = found->second;
        step.depends_step = static_cast<uint32_t>(depends_step);
      }
      block->steps.push_back(step);
    }
  }

  void check_dependences(pugi::xml_node block_node, const MscclGpu& gpu, uint32_t index) {
    size_t at = 0;
    for (const pugi::xml_node node : block_node.children("step")) {
      if (!ok() || at >= gpu.blocks[index].steps.size()) return;
      const MscclStep& step = gpu.blocks[index].steps[at];
      if (step.depends_block >= 0) {
        const MscclBlock& other = gpu.blocks[static_cast<size_t>(step.depends_block)];
        if (step.depends_step >= other.steps.size()) {
          fail(node, fmt::format("waits for step {} of block {}, which has {} steps",
                                 step.depends_step, other.id, other.steps.size()));
        } else if (&other == &gpu.blocks[index] && step.depends_step >= at) {
          fail(node, "waits for itself or for a later step of its own block");
        }
      }
      ++at;
    }
  }

  void read_type(pugi::xml_node node, MscclStep* step) {
    const std::string_view type = text(node, "type");
    for (const auto& [name, value] : kTypes) {
      if (name != type) continue;
      step->type = value;
      return;
    }
    fail(node, fmt::format("type=\"{}\" is unknown; known are s, r, cpy, re, rrc, rcs, rrs, rrcs "
                           "and nop",
                           shown(type)));
  }

  MscclPlace read_place(pugi::xml_node node, const char* buffer, const char* offset) {
    const std::string_view name = text(node, buffer);
    MscclPlace place;
    if (name != "i" && name != "o" && name != "s") {
      fail(node, fmt::format("{}=\"{}\" is unknown; known are i, o and s", buffer, shown(name)));
      return place;
    }
    place.buffer = name[0];
    place.offset = static_cast<uint32_t>(number(node, offset, 0, kChunksMax));
    return place;
  }

  const XmlReader& xml_;
  uint64_t chunk_moves_ = 0;
};

}  // namespace

Result<ProgramText> read_msccl(std::string_view text, std::string_view name) {
  auto xml = XmlReader::load(text, name, {.bytes_max = kProgramTextBytesMax});
  if (!xml.ok()) return xml.status();
  Reader reader(*xml.value());
  MscclAlgo algo = reader.read();
  if (!reader.ok()) return reader.status;
  algo.name = name;
  return convert_msccl(algo);
}

}  // namespace weir::algo
