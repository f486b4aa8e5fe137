// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/base/status.h"
#include "core/engine/call.h"
#include "weir_trace/report.h"

namespace weir::trace {

using comm::Record;
using comm::RecordKind;
using comm::RecordState;
using Json = nlohmann::ordered_json;

const char* name_of_kind(RecordKind kind) {
  switch (kind) {
    case RecordKind::kNothing:
      return "nothing";
    case RecordKind::kCollective:
      return "collective";
    case RecordKind::kQueued:
      return "queued collective";
    case RecordKind::kSend:
      return "send";
    case RecordKind::kRecv:
      return "receive";
    case RecordKind::kPutSignal:
      return "put with signal";
    case RecordKind::kSignal:
      return "signal";
    case RecordKind::kWaitSignal:
      return "wait for signals";
    case RecordKind::kPut:
      return "put";
    case RecordKind::kGet:
      return "get";
    case RecordKind::kFetchAdd:
      return "fetch and add";
    case RecordKind::kCompareSwap:
      return "compare and swap";
    case RecordKind::kFlush:
      return "flush";
    case RecordKind::kRetire:
      return "retirement of a window";
    case RecordKind::kWaitWord:
      return "wait for a word";
    case RecordKind::kTagSend:
      return "send with a tag";
    case RecordKind::kTagRecv:
      return "receive with a tag";
    case RecordKind::kCapture:
      return "capture into a graph";
  }
  return "?";
}

const char* units_of(RecordKind kind) {
  return kind == RecordKind::kWaitSignal ? "signals"
         : kind == RecordKind::kWaitWord ? "value"
                                         : "bytes";
}

namespace {

const char* name_of_state(RecordState state) {
  switch (state) {
    case RecordState::kOpen:
      return "open";
    case RecordState::kFailed:
      return "failed";
    case RecordState::kAborted:
      return "aborted";
  }
  return "?";
}

Json json_of_wait(const Group& group, const Record& record, uint64_t now_ns) {
  const comm::RecordedWait& wait = record.wait;
  if (wait.kind == RecordKind::kNothing) return nullptr;
  Json json;
  json["kind"] = name_of_kind(wait.kind);
  json["number"] = wait.sequence;
  if (wait.kind == RecordKind::kCollective || wait.kind == RecordKind::kQueued) {
    json["call"] = describe({wait.what, wait.count});
    json["algorithm"] = wait.algorithm;
    json["protocol"] = wait.protocol;
    json["step"] = wait.step;
    json["step_count"] = wait.step_count;
    json["slice"] = wait.slice;
    json["slice_count"] = wait.slice_count;
  } else {
    json[units_of(wait.kind)] = wait.count;
  }
  json["waited_ns"] = waited_ns(group, record, now_ns);
  json["awaited_ranks"] = wait.awaited;
  json["awaited_count"] = wait.awaited_count;
  return json;
}

Json json_of_record(const Group& group, const Record& record, uint64_t now_ns) {
  Json json;
  json["rank"] = record.rank;
  json["file"] = record.path;
  json["host"] = record.host;
  json["process"] = record.process;
  json["life"] = comm::name_of(record.life);
  json["state"] = name_of_state(record.state);
  if (record.state != RecordState::kOpen) {
    json["code"] = record.code;
    json["why"] = record.why;
  }
  json["start_ns"] = {{"rendezvous", record.start.rendezvous_ns},
                      {"handshake", record.start.handshake_ns},
                      {"exchange", record.start.exchange_ns},
                      {"connect", record.start.connect_ns},
                      {"costs", record.start.costs_ns}};
  json["ways"] = Json::array();
  for (const comm::RecordedWay& way : record.ways) {
    json["ways"].push_back({{"peer", way.peer}, {"text", way.text}});
  }
  json["completed"] = record.completed;
  json["called"] = called(record);
  json["activity"] = activity_of(group, record, now_ns);
  json["wait"] = json_of_wait(group, record, now_ns);
  json["latest_ns"] = record.latest_ns;
  json["operations"] = Json::array();
  for (const comm::RecordedOperation& operation : record.operations) {
    json["operations"].push_back({{"number", operation.sequence},
                                  {"call", describe({operation.what, operation.count})},
                                  {"completed", operation.sequence <= record.completed},
                                  {"begin_ns", operation.begin_ns},
                                  {"end_ns", operation.end_ns}});
  }
  json["messages"] = Json::array();
  for (const comm::RecordedMessage& message : record.messages) {
    json["messages"].push_back({{"number", message.number},
                                {"kind", name_of_kind(message.kind)},
                                {"peer", message.peer},
                                {units_of(message.kind), message.bytes},
                                {"completed", message.done},
                                {"begin_ns", message.begin_ns},
                                {"end_ns", message.end_ns}});
  }
  return json;
}

}  // namespace

std::string json_of(const Report& report) {
  Json json;
  json["now_ns"] = report.now_ns;
  json["first_cause"] = first_cause(report.groups, report.verdicts);
  json["communicators"] = Json::array();
  for (size_t i = 0; i < report.groups.size(); ++i) {
    const Group& group = report.groups[i];
    const Verdict& verdict = report.verdicts[i];
    Json one;
    one["name"] = group.name();
    one["id"] = fmt::format("{:016x}", group.records.front().comm_id);
    one["instance"] = fmt::format("{:016x}", group.records.front().instance);
    one["rank_count"] = group.rank_count();
    one["transport"] = group.records.front().transport;
    one["program"] = group.records.front().program;
    one["missing_ranks"] = group.missing();
    one["verdict"] = {{"finding", name_of(verdict.finding)},
                      {"ranks", verdict.ranks},
                      {"operation", verdict.sequence},
                      {"text", verdict.text}};
    one["ranks"] = Json::array();
    for (const Record& record : group.records) {
      one["ranks"].push_back(json_of_record(group, record, report.now_ns));
    }
    json["communicators"].push_back(std::move(one));
  }
  json["problems"] = report.problems;
  // Names may hold any bytes.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace weir::trace
