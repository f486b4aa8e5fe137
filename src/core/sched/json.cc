// SPDX-License-Identifier: Apache-2.0
#include "core/sched/json.h"

#include <fmt/format.h>

#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/sched/print.h"
#include "core/sched/validate.h"

namespace weir::sched {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "weir-programs";
constexpr uint32_t kVersion = 1;

// --- Writing ---

json ref_to_json(const Ref& ref, Rank self) {
  json result = json::array({name_of(ref.space), ref.chunk});
  if (ref.rank != self) result.push_back(ref.rank);
  return result;
}

json op_to_json(const Program& program, const Op& op) {
  json result{{"op", name_of(op.code)}};
  if (op.lane != 0) result["lane"] = op.lane;
  const auto put_count = [&] {
    if (op.count != 1) result["count"] = op.count;
  };
  switch (op.code) {
    case OpCode::kSend:
      result["peer"] = op.peer;
      result["src"] = ref_to_json(op.src, program.rank);
      put_count();
      break;
    case OpCode::kRecv:
      result["peer"] = op.peer;
      result["dst"] = ref_to_json(op.dst, program.rank);
      put_count();
      break;
    case OpCode::kCopy:
      result["dst"] = ref_to_json(op.dst, program.rank);
      result["src"] = ref_to_json(op.src, program.rank);
      put_count();
      break;
    case OpCode::kReduce: {
      result["dst"] = ref_to_json(op.dst, program.rank);
      json operands = json::array();
      for (uint32_t k = 0; k < op.operand_count; ++k) {
        operands.push_back(ref_to_json(program.operands[op.first_operand + k], program.rank));
      }
      result["operands"] = std::move(operands);
      put_count();
      break;
    }
    case OpCode::kWait:
      result["value"] = op.value;
      [[fallthrough]];
    case OpCode::kSignal:
      result["peer"] = op.peer == kAllRanks ? json("all") : json(op.peer);
      result["signal"] = op.signal;
      break;
  }
  return result;
}

json program_to_json(const Program& program) {
  json ops = json::array();
  for (const Op& op : program.ops) ops.push_back(op_to_json(program, op));
  return {{"rank", program.rank}, {"ops", std::move(ops)}};
}

// --- Reading. The first error is kept; reads after it do nothing. ---

class Reader {
 public:
  Status status;

  bool ok() const { return status.ok(); }
  void fail(const std::string& path, const std::string& what) {
    if (ok())
      status = invalid_argument(fmt::format("{}: {}", path.empty() ? "document" : path, what));
  }

  // `value` is an object with no other fields than those named.
  bool object(const json& value, const std::string& path,
              std::initializer_list<const char*> fields) {
    if (!ok()) return false;
    if (!value.is_object()) {
      fail(path, fmt::format("must be an object, is {}", value.type_name()));
      return false;
    }
    for (const auto& [name, unused] : value.items()) {
      bool known = false;
      for (const char* field : fields) known = known || name == field;
      if (!known) fail(join(path, name), "unknown field");
    }
    return ok();
  }

  const json* field(const json& value, const std::string& path, const char* name) {
    if (!ok()) return nullptr;
    const auto found = value.find(name);
    if (found == value.end()) {
      fail(join(path, name), "is missing");
      return nullptr;
    }
    return &*found;
  }

  uint32_t number(const json& value, const std::string& path, uint64_t max) {
    if (!ok()) return 0;
    if (!value.is_number_integer() && !value.is_number_unsigned()) {
      fail(path, fmt::format("must be a whole number, is {}", describe_value(value)));
      return 0;
    }
    const bool is_negative = !value.is_number_unsigned() && value.get<int64_t>() < 0;
    if (is_negative || value.get<uint64_t>() > max) {
      fail(path, fmt::format("{} is not in 0..{}", value.dump(), max));
      return 0;
    }
    return value.get<uint32_t>();
  }

  uint32_t number_field(const json& object_value, const std::string& path, const char* name,
                        uint64_t max = std::numeric_limits<uint32_t>::max() - 1) {
    const json* value = field(object_value, path, name);
    return value == nullptr ? 0 : number(*value, join(path, name), max);
  }

  uint32_t optional_number(const json& object_value, const std::string& path, const char* name,
                           uint32_t otherwise, uint64_t max) {
    if (!ok() || !object_value.contains(name)) return otherwise;
    return number(object_value[name], join(path, name), max);
  }

  bool flag(const json& object_value, const std::string& path, const char* name) {
    if (!ok() || !object_value.contains(name)) return false;
    const json& value = object_value[name];
    if (!value.is_boolean()) {
      fail(join(path, name), fmt::format("must be true or false, is {}", describe_value(value)));
      return false;
    }
    return value.get<bool>();
  }

  std::string text_field(const json& object_value, const std::string& path, const char* name) {
    const json* value = field(object_value, path, name);
    if (value == nullptr) return "";
    if (!value->is_string()) {
      fail(join(path, name), fmt::format("must be a string, is {}", describe_value(*value)));
      return "";
    }
    return value->get<std::string>();
  }

  const json* array_field(const json& object_value, const std::string& path, const char* name) {
    const json* value = field(object_value, path, name);
    if (value != nullptr && !value->is_array()) {
      fail(join(path, name), fmt::format("must be an array, is {}", value->type_name()));
      return nullptr;
    }
    return value;
  }

  static std::string join(const std::string& path, const std::string& name) {
    return path.empty() ? name : path + "." + name;
  }
  static std::string at(const std::string& path, size_t index) {
    return fmt::format("{}[{}]", path, index);
  }
  static std::string describe_value(const json& value) {
    std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
    constexpr size_t kShownMax = 40;
    if (text.size() > kShownMax) text = text.substr(0, kShownMax) + "…";
    return text;
  }
};

Ref read_ref(Reader& reader, const json& value, const std::string& path, Rank self) {
  Ref ref;
  ref.rank = self;
  if (!reader.ok()) return ref;
  if (!value.is_array() || value.size() < 2 || value.size() > 3 || !value[0].is_string()) {
    reader.fail(path, fmt::format("must be [space, chunk] or [space, chunk, rank], is {}",
                                  Reader::describe_value(value)));
    return ref;
  }
  const auto space = value[0].get<std::string>();
  bool known = false;
  for (Space candidate : {Space::kInput, Space::kOutput, Space::kScratch, Space::kStaging}) {
    if (space != name_of(candidate)) continue;
    ref.space = candidate;
    known = true;
  }
  if (!known) {
    reader.fail(Reader::at(path, 0),
                fmt::format("unknown space {}; known are in, out, scratch and staging",
                            Reader::describe_value(value[0])));
  }
  constexpr uint64_t kMax = std::numeric_limits<uint32_t>::max() - 1;
  ref.chunk = reader.number(value[1], Reader::at(path, 1), kMax);
  if (value.size() == 3) ref.rank = reader.number(value[2], Reader::at(path, 2), kMax);
  return ref;
}

uint32_t read_signal_peer(Reader& reader, const json& value, const std::string& path) {
  const json* peer = reader.field(value, path, "peer");
  if (peer == nullptr) return 0;
  if (peer->is_string() && peer->get<std::string>() == "all") return kAllRanks;
  if (peer->is_string()) reader.fail(Reader::join(path, "peer"), "must be a rank or \"all\"");
  return reader.number(*peer, Reader::join(path, "peer"), std::numeric_limits<uint32_t>::max() - 1);
}

void read_op(Reader& reader, const json& value, const std::string& path, Program* program) {
  if (reader.ok() && !value.is_object()) {
    reader.fail(path, fmt::format("must be an object, is {}", value.type_name()));
  }
  const std::string name = reader.text_field(value, path, "op");
  if (!reader.ok()) return;
  Op op;
  bool known = false;
  for (uint32_t i = 0; i < kOpCodeCount; ++i) {
    const auto code = static_cast<OpCode>(i);
    if (name != name_of(code)) continue;
    op.code = code;
    known = true;
  }
  if (!known) {
    reader.fail(Reader::join(path, "op"),
                fmt::format("unknown operation {}; known are send, recv, copy, reduce, signal and "
                            "wait (a copy whose dst is at a peer writes there)",
                            Reader::describe_value(value["op"])));
    return;
  }
  constexpr uint64_t kMax = std::numeric_limits<uint32_t>::max() - 1;
  const auto ref = [&](const char* field) {
    const json* found = reader.field(value, path, field);
    return found == nullptr ? Ref{}
                            : read_ref(reader, *found, Reader::join(path, field), program->rank);
  };
  const auto count = [&] { op.count = reader.optional_number(value, path, "count", 1, kMax); };
  op.lane = static_cast<uint8_t>(
      reader.optional_number(value, path, "lane", 0, program->shape.lane_count - 1));
  switch (op.code) {
    case OpCode::kSend:
      if (!reader.object(value, path, {"op", "lane", "peer", "src", "count"})) return;
      op.peer = reader.number_field(value, path, "peer");
      op.src = ref("src");
      count();
      break;
    case OpCode::kRecv:
      if (!reader.object(value, path, {"op", "lane", "peer", "dst", "count"})) return;
      op.peer = reader.number_field(value, path, "peer");
      op.dst = ref("dst");
      count();
      break;
    case OpCode::kCopy:
      if (!reader.object(value, path, {"op", "lane", "dst", "src", "count"})) return;
      op.dst = ref("dst");
      op.src = ref("src");
      count();
      break;
    case OpCode::kReduce: {
      if (!reader.object(value, path, {"op", "lane", "dst", "operands", "count"})) return;
      op.dst = ref("dst");
      count();
      const json* operands = reader.array_field(value, path, "operands");
      if (operands == nullptr) return;
      op.first_operand = static_cast<uint32_t>(program->operands.size());
      op.operand_count = static_cast<uint32_t>(operands->size());
      for (size_t k = 0; k < operands->size(); ++k) {
        program->operands.push_back(read_ref(
            reader, (*operands)[k], Reader::at(Reader::join(path, "operands"), k), program->rank));
      }
      break;
    }
    case OpCode::kSignal:
    case OpCode::kWait:
      if (op.code == OpCode::kWait) {
        if (!reader.object(value, path, {"op", "lane", "peer", "signal", "value"})) return;
        op.value = reader.number_field(value, path, "value");
      } else if (!reader.object(value, path, {"op", "lane", "peer", "signal"})) {
        return;
      }
      op.peer = read_signal_peer(reader, value, path);
      op.signal = static_cast<uint8_t>(
          reader.number_field(value, path, "signal", std::numeric_limits<uint8_t>::max()));
      break;
  }
  program->ops.push_back(op);
}

// Everything but the operations.
Program read_head(Reader& reader, const json& document, Access* access) {
  Program head;
  reader.object(
      document, "",
      {"format", "version", "collective", "rank_count", "root", "access", "shape", "programs"});
  const std::string format = reader.text_field(document, "", "format");
  if (reader.ok() && format != kFormat) {
    reader.fail("format", fmt::format("must be \"{}\"", kFormat));
  }
  const uint32_t version = reader.number_field(document, "", "version");
  if (reader.ok() && version != kVersion) {
    reader.fail("version", fmt::format("{} is not {}, the one that is known", version, kVersion));
  }
  const std::string collective = reader.text_field(document, "", "collective");
  bool known = false;
  for (uint32_t i = 0; i < static_cast<uint32_t>(Collective::kSendRecv); ++i) {
    if (collective != weir::name_of(static_cast<Collective>(i))) continue;
    head.collective = static_cast<Collective>(i);
    known = true;
  }
  if (!known) reader.fail("collective", fmt::format("\"{}\" is not known", collective));
  head.rank_count = reader.number_field(document, "", "rank_count", kVerifiedRankCountMax);
  head.root = reader.optional_number(document, "", "root", 0, kVerifiedRankCountMax);
  if (reader.ok() && document.contains("access")) {
    const json& value = document["access"];
    reader.object(value, "access", {"mapped", "inputs_mapped", "outputs_mapped", "in_place"});
    access->mapped = reader.flag(value, "access", "mapped");
    access->inputs_mapped = reader.flag(value, "access", "inputs_mapped");
    access->outputs_mapped = reader.flag(value, "access", "outputs_mapped");
    access->in_place = reader.flag(value, "access", "in_place");
  }
  const json* shape = reader.field(document, "", "shape");
  if (shape != nullptr && reader.object(*shape, "shape",
                                        {"chunk_count", "scratch_slots", "staging_slots",
                                         "lane_count", "signal_count"})) {
    constexpr uint64_t kMax = kVerifiedPlaceCountMax;
    head.shape.chunk_count = reader.number_field(*shape, "shape", "chunk_count", kMax);
    head.shape.scratch_slots = reader.optional_number(*shape, "shape", "scratch_slots", 0, kMax);
    head.shape.staging_slots = reader.optional_number(*shape, "shape", "staging_slots", 0, kMax);
    head.shape.lane_count = reader.optional_number(*shape, "shape", "lane_count", 1, kLaneCountMax);
    head.shape.signal_count =
        reader.optional_number(*shape, "shape", "signal_count", 0, kSignalCountMax);
  }
  if (reader.ok()) {
    const Flaw flaw = validate_head(head);
    if (flaw.found()) reader.fail("", flaw.text);
  }
  return head;
}

}  // namespace

std::string to_json(const ProgramSet& set, JsonForm form) {
  const Program& head = set.programs.front();
  json document{{"format", kFormat},
                {"version", kVersion},
                {"collective", weir::name_of(head.collective)},
                {"rank_count", head.rank_count},
                {"root", head.root},
                {"access",
                 {{"mapped", set.access.mapped},
                  {"inputs_mapped", set.access.inputs_mapped},
                  {"outputs_mapped", set.access.outputs_mapped},
                  {"in_place", set.access.in_place}}},
                {"shape",
                 {{"chunk_count", head.shape.chunk_count},
                  {"scratch_slots", head.shape.scratch_slots},
                  {"staging_slots", head.shape.staging_slots},
                  {"lane_count", head.shape.lane_count},
                  {"signal_count", head.shape.signal_count}}}};
  json programs = json::array();
  for (const Program& program : set.programs) programs.push_back(program_to_json(program));
  document["programs"] = std::move(programs);
  return document.dump(form == JsonForm::kLines ? 1 : -1) + "\n";
}

std::string to_json(const Program& program) { return program_to_json(program).dump(1) + "\n"; }

Result<ProgramSet> from_json(std::string_view text) {
  if (text.size() > kJsonBytesMax) {
    return invalid_argument(
        fmt::format("the document has {} bytes, at most {} are read", text.size(), kJsonBytesMax));
  }
  json document;
  try {
    document = json::parse(text.begin(), text.end());
  } catch (const json::exception& error) {
    return invalid_argument(fmt::format("not valid JSON: {}", error.what()));
  }
  Reader reader;
  ProgramSet set;
  const Program head = read_head(reader, document, &set.access);
  const json* programs = reader.ok() ? reader.array_field(document, "", "programs") : nullptr;
  if (programs == nullptr) return reader.status;
  if (programs->size() != head.rank_count) {
    return invalid_argument(
        fmt::format("programs: {} entries for {} ranks", programs->size(), head.rank_count));
  }
  for (size_t i = 0; i < programs->size(); ++i) {
    const json& value = (*programs)[i];
    const std::string path = Reader::at("programs", i);
    Program& program = set.programs.emplace_back(head);
    if (!reader.object(value, path, {"rank", "ops"})) return reader.status;
    program.rank = reader.number_field(value, path, "rank", kVerifiedRankCountMax);
    if (reader.ok() && program.rank != i) {
      reader.fail(Reader::join(path, "rank"), fmt::format("is {} and must be {}: programs stand in "
                                                          "the order of ranks",
                                                          program.rank, i));
    }
    const json* ops = reader.array_field(value, path, "ops");
    for (size_t k = 0; reader.ok() && k < ops->size(); ++k) {
      read_op(reader, (*ops)[k], Reader::at(path + ".ops", k), &program);
    }
    if (!reader.ok()) return reader.status;
  }
  return set;
}

}  // namespace weir::sched
