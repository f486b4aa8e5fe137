// SPDX-License-Identifier: Apache-2.0
#include "core/sim/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/graph/cut_bound.h"
#include "core/sim/layout.h"
#include "output/svg_canvas.h"

namespace weir::sim {

namespace {

constexpr size_t kBlockedShown = 16;
constexpr size_t kLinksShown = 6;

double ns(uint64_t ps) { return static_cast<double>(ps) / 1000; }

double percent(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

struct Busiest {
  size_t index = 0;
  uint64_t most_ps = 0;
  uint64_t sum_ps = 0;
};

Busiest busiest(const std::vector<PortUse>& ports, uint64_t PortUse::*side) {
  Busiest result;
  for (size_t i = 0; i < ports.size(); ++i) {
    const uint64_t busy = ports[i].*side;
    result.sum_ps += busy;
    if (busy > result.most_ps) {
      result.most_ps = busy;
      result.index = i;
    }
  }
  return result;
}

std::string text_of_ports(const char* what, const std::vector<PortUse>& ports,
                          uint64_t PortUse::*side, const Report& report, bool is_nic) {
  if (ports.empty() || report.total_ps == 0) return "";
  const Busiest most = busiest(ports, side);
  if (most.most_ps == 0) return "";
  const std::string where =
      is_nic ? fmt::format("node {} rail {}", most.index / report.rails, most.index % report.rails)
             : fmt::format("rank {}", most.index);
  return fmt::format("  {:<16} {:5.1f} % busy on average, {:5.1f} % at most ({})\n", what,
                     percent(most.sum_ps / ports.size(), report.total_ps),
                     percent(most.most_ps, report.total_ps), where);
}

// "12.3 GB"
std::string text_of_bytes(uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (value < 1e3) return fmt::format("{} B", bytes);
  if (value < 1e6) return fmt::format("{:.4g} kB", value / 1e3);
  if (value < 1e9) return fmt::format("{:.4g} MB", value / 1e6);
  return fmt::format("{:.4g} GB", value / 1e9);
}

double gbs(const graph::Link& link) { return static_cast<double>(link.bandwidth) / 1e6; }

std::string text_of_link(const graph::LinkGraph& graph, graph::LinkId id) {
  const graph::Link& link = graph.links()[id];
  return text_of_vertex(graph, link.from) + " -> " + text_of_vertex(graph, link.to);
}

std::string text_of_links(const Report& report, const graph::LinkGraph& graph) {
  uint64_t sum_ps = 0;
  size_t limited = 0;
  for (graph::LinkId id = 0; id < graph.links().size(); ++id) {
    if (graph.links()[id].bandwidth == graph::kUnlimited) continue;
    ++limited;
    sum_ps += report.links[id].busy_ps;
  }
  const std::vector<graph::LinkId> busiest = busiest_links(report, kLinksShown);
  if (busiest.empty() || report.total_ps == 0) return "";
  std::string text =
      fmt::format("  links            {} with a limit, {:.1f} % busy on average; the busiest:\n",
                  limited, percent(sum_ps / limited, report.total_ps));
  for (const graph::LinkId id : busiest) {
    const LinkUse& use = report.links[id];
    text += fmt::format("                   {:5.1f} %  {}: {} over {:.4g} GB/s\n",
                        100 * busy_share(report, id), text_of_link(graph, id),
                        text_of_bytes(use.bytes), gbs(graph.links()[id]));
  }
  return text;
}

nlohmann::ordered_json json_of_links(const Report& report, const graph::LinkGraph& graph) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (graph::LinkId id = 0; id < graph.links().size(); ++id) {
    const graph::Link& link = graph.links()[id];
    const LinkUse& use = report.links[id];
    nlohmann::ordered_json json = {{"from", text_of_vertex(graph, link.from)},
                                   {"to", text_of_vertex(graph, link.to)}};
    // null: no limit.
    json["gbs"] = nullptr;
    if (link.bandwidth != graph::kUnlimited) json["gbs"] = gbs(link);
    json["messages"] = use.messages;
    json["bytes"] = use.bytes;
    json["busy_ns"] = ns(use.busy_ps);
    json["busy_share"] = busy_share(report, id);
    list.push_back(std::move(json));
  }
  return list;
}

std::string text_of(const Culprit& culprit) {
  switch (culprit.kind) {
    case Culprit::Kind::kDead:
      return fmt::format("rank {} is dead: {} ranks wait for it, directly or through others",
                         culprit.ranks[0], culprit.victim_count);
    case Culprit::Kind::kFinished:
      return fmt::format("rank {} has finished, and {} ranks wait for it: the program is wrong",
                         culprit.ranks[0], culprit.victim_count);
    case Culprit::Kind::kCycle:
      break;
  }
  std::string ring;
  for (Rank rank : culprit.ranks) ring += fmt::format("{} -> ", rank);
  return fmt::format("ranks wait for each other: {}{}; {} ranks are stuck", ring, culprit.ranks[0],
                     culprit.victim_count);
}

const char* name_of(Culprit::Kind kind) {
  switch (kind) {
    case Culprit::Kind::kDead:
      return "dead";
    case Culprit::Kind::kCycle:
      return "cycle";
    case Culprit::Kind::kFinished:
      return "finished";
  }
  return "?";
}

}  // namespace

std::string text_of_time(uint64_t ps) {
  const double value = ns(ps);
  if (value < 1e3) return fmt::format("{:.1f} ns", value);
  if (value < 1e6) return fmt::format("{:.2f} us", value / 1e3);
  if (value < 1e9) return fmt::format("{:.3f} ms", value / 1e6);
  return fmt::format("{:.3f} s", value / 1e9);
}

std::optional<cost::ClosedForm> expected(const algo::Algorithm& algorithm,
                                         const algo::Problem& problem, uint64_t bytes,
                                         const Options& options) {
  if (!options.slow.empty() || !options.dead.empty() || options.links != nullptr) {
    return std::nullopt;
  }
  const cost::ChunkBytes chunks(problem.collective, problem.rank_count, bytes,
                                algorithm.shape(problem).chunk_count, options.slicing.slice_bytes);
  if (chunks.slice_count() > 1) return std::nullopt;
  const Layout layout(problem, options.network.nic.rails);
  const bool one_node = layout.node_count() == 1;
  if (!one_node && layout.node_count() != problem.rank_count) return std::nullopt;
  const Level& level = one_node ? options.network.intra_node : options.network.inter_node;
  const double nic = one_node ? 0 : options.network.nic.ns_per_byte;
  return cost::closed_form(algorithm, problem, bytes,
                           {.send_overhead_ns = level.send_overhead_ns,
                            .latency_ns = level.latency_ns,
                            .recv_overhead_ns = level.recv_overhead_ns,
                            .ns_per_byte = std::max(level.ns_per_byte, nic),
                            .signal_ns = level.signal_ns,
                            .remote_ns_per_byte = level.remote_ns_per_byte,
                            .copy_ns_per_byte = options.network.copy_ns_per_byte,
                            .reduce_ns_per_byte = options.network.reduce_ns_per_byte});
}

Machine machine_of(const graph::LinkGraph& graph, const algo::Problem& problem, uint64_t bytes) {
  Machine machine{.graph = &graph, .least_ns = std::nullopt};
  switch (problem.collective) {
    case Collective::kAllReduce:
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
    case Collective::kBroadcast:
    case Collective::kReduce: {
      const double least = graph::least_ns(graph, problem.collective, problem.root, bytes);
      if (least > 0) machine.least_ns = least;
      break;
    }
    default:
      break;
  }
  return machine;
}

std::string text_of_vertex(const graph::LinkGraph& graph, graph::VertexId vertex) {
  const graph::Vertex& it = graph.vertices()[vertex];
  const bool several = graph.host_count() > 1 && it.host != graph::kNone;
  return several ? fmt::format("M{}.{}", it.host, it.name) : it.name;
}

double busy_share(const Report& report, graph::LinkId link) {
  if (report.total_ps == 0) return 0;
  return static_cast<double>(report.links[link].busy_ps) / static_cast<double>(report.total_ps);
}

std::vector<graph::LinkId> busiest_links(const Report& report, size_t count) {
  std::vector<graph::LinkId> ids;
  for (graph::LinkId id = 0; id < report.links.size(); ++id) {
    if (report.links[id].busy_ps > 0) ids.push_back(id);
  }
  std::stable_sort(ids.begin(), ids.end(), [&](graph::LinkId a, graph::LinkId b) {
    return report.links[a].busy_ps > report.links[b].busy_ps;
  });
  if (ids.size() > count) ids.resize(count);
  return ids;
}

std::string to_text(const Report& report, const std::optional<cost::ClosedForm>& closed_form,
                    const Machine& machine) {
  std::string text;
  text += fmt::format("{} {}\n", report.complete ? "finished after" : "STOPPED at",
                      text_of_time(report.total_ps));
  if (closed_form) {
    text += fmt::format("  closed form      {}: {}{}\n",
                        text_of_time(static_cast<uint64_t>(closed_form->ns * 1000)),
                        closed_form->formula, closed_form->exact ? "" : " (an estimate here)");
  }
  if (machine.least_ns) {
    text += fmt::format("  cut bound        {} by the links' bandwidth alone",
                        text_of_time(static_cast<uint64_t>(*machine.least_ns * 1000)));
    text += report.complete ? fmt::format("; the time is {:.2f} times as long\n",
                                          ns(report.total_ps) / *machine.least_ns)
                            : "\n";
  }
  const CriticalPath& path = report.critical_path;
  text += fmt::format("  critical path    ends at rank {} after {} messages or signals:\n",
                      path.rank, path.hops);
  text += fmt::format(
      "                   overhead {}, latency {}, transfer {}, computation {}, contention {}\n",
      text_of_time(path.overhead_ps), text_of_time(path.latency_ps), text_of_time(path.transfer_ps),
      text_of_time(path.compute_ps), text_of_time(path.contention_ps));
  text += fmt::format(
      "  traffic          {} messages, {} bytes within nodes, {} bytes between nodes\n",
      report.messages, report.message_bytes_intra_node, report.message_bytes_inter_node);
  text += fmt::format("  memory           {} bytes copied or reduced, {} at peers, {} signals\n",
                      report.copied_bytes, report.remote_bytes, report.signals);
  text += text_of_ports("ports out", report.rank_ports, &PortUse::egress_ps, report, false);
  text += text_of_ports("ports in", report.rank_ports, &PortUse::ingress_ps, report, false);
  text += text_of_ports("NICs out", report.nic_ports, &PortUse::egress_ps, report, true);
  text += text_of_ports("NICs in", report.nic_ports, &PortUse::ingress_ps, report, true);
  if (machine.graph != nullptr) text += text_of_links(report, *machine.graph);
  text += fmt::format("  events           {}, trace {:016x}\n", report.events, report.trace_hash);
  for (const Culprit& culprit : report.culprits)
    text += "  culprit          " + text_of(culprit) + "\n";
  // The lanes that wait directly for a culprit are the most informative.
  std::vector<Blocked> blocked = report.blocked;
  const auto waits_for_culprit = [&](const Blocked& lane) {
    return std::any_of(report.culprits.begin(), report.culprits.end(), [&](const Culprit& c) {
      return std::find(c.ranks.begin(), c.ranks.end(), lane.waits_for) != c.ranks.end();
    });
  };
  std::stable_partition(blocked.begin(), blocked.end(), waits_for_culprit);
  for (size_t i = 0; i < std::min(blocked.size(), kBlockedShown); ++i) {
    const Blocked& lane = blocked[i];
    text += fmt::format("  blocked          rank {} lane {} waits for a {} from rank {} since {}\n",
                        lane.rank, lane.lane, lane.for_signal ? "signal" : "message",
                        lane.waits_for, text_of_time(lane.since_ps));
  }
  if (report.blocked.size() > kBlockedShown) {
    text += fmt::format("                   and {} more\n", report.blocked.size() - kBlockedShown);
  }
  return text;
}

std::string to_json(const Report& report, const std::optional<cost::ClosedForm>& closed_form,
                    const Machine& machine) {
  nlohmann::ordered_json json;
  json["complete"] = report.complete;
  json["total_ns"] = ns(report.total_ps);
  if (closed_form) {
    json["closed_form"] = {
        {"ns", closed_form->ns}, {"formula", closed_form->formula}, {"exact", closed_form->exact}};
  }
  if (machine.least_ns) {
    json["cut_bound_ns"] = *machine.least_ns;
    if (report.complete) json["cut_bound_ratio"] = ns(report.total_ps) / *machine.least_ns;
  }
  const CriticalPath& path = report.critical_path;
  json["critical_path"] = {{"rank", path.rank},
                           {"hops", path.hops},
                           {"overhead_ns", ns(path.overhead_ps)},
                           {"latency_ns", ns(path.latency_ps)},
                           {"transfer_ns", ns(path.transfer_ps)},
                           {"compute_ns", ns(path.compute_ps)},
                           {"contention_ns", ns(path.contention_ps)}};
  json["messages"] = report.messages;
  json["signals"] = report.signals;
  json["message_bytes_intra_node"] = report.message_bytes_intra_node;
  json["message_bytes_inter_node"] = report.message_bytes_inter_node;
  json["copied_bytes"] = report.copied_bytes;
  json["remote_bytes"] = report.remote_bytes;
  json["events"] = report.events;
  json["operations"] = report.operations;
  json["trace_hash"] = fmt::format("{:016x}", report.trace_hash);
  const auto ports = [&](const std::vector<PortUse>& uses) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const PortUse& use : uses) {
      list.push_back({{"out_ns", ns(use.egress_ps)}, {"in_ns", ns(use.ingress_ps)}});
    }
    return list;
  };
  if (machine.graph != nullptr) json["links"] = json_of_links(report, *machine.graph);
  json["rails"] = report.rails;
  json["rank_ports"] = ports(report.rank_ports);
  json["nic_ports"] = ports(report.nic_ports);
  json["dead"] = report.dead;
  json["culprits"] = nlohmann::ordered_json::array();
  for (const Culprit& culprit : report.culprits) {
    json["culprits"].push_back({{"kind", name_of(culprit.kind)},
                                {"ranks", culprit.ranks},
                                {"victims", culprit.victim_count},
                                {"text", text_of(culprit)}});
  }
  json["blocked"] = nlohmann::ordered_json::array();
  for (const Blocked& lane : report.blocked) {
    json["blocked"].push_back({{"rank", lane.rank},
                               {"lane", lane.lane},
                               {"waits_for", lane.waits_for},
                               {"for", lane.for_signal ? "signal" : "message"},
                               {"since_ns", ns(lane.since_ps)}});
  }
  std::vector<double> finish_ns;
  for (uint64_t ps : report.finish_ps) finish_ns.push_back(ns(ps));
  json["finish_ns"] = finish_ns;
  return json.dump(1) + "\n";
}

std::string to_svg(const Report& report, const std::string& title) {
  constexpr double kWidth = 1000;
  constexpr double kLeft = 70;
  constexpr double kTop = 50;
  constexpr double kRow = 16;
  constexpr double kTextSize = 11;
  constexpr const char* kTextColor = "#000000";
  constexpr const char* kColors[] = {"#3b6fb6", "#4d9f5b", "#d08a2e", "#d9d9d9"};
  constexpr const char* kNames[] = {"send", "receive", "compute", "wait"};
  const auto filled = [](const char* color) {
    return output::ShapeStyle{.fill = color, .stroke = {.width_px = 0}, .radius_px = 0};
  };
  const output::TextStyle text{.size_px = kTextSize, .color = kTextColor};
  output::TextStyle text_before = text;
  text_before.anchor = output::Anchor::kEnd;
  Rank rows = 0;
  for (const Span& span : report.timeline) rows = std::max(rows, span.rank + 1);
  const double height = kTop + rows * kRow + 30;
  const double scale = report.total_ps == 0 ? 0 : kWidth / static_cast<double>(report.total_ps);
  output::Canvas canvas;
  canvas.text(kLeft, 18, title, {.size_px = 14, .color = kTextColor});
  for (size_t i = 0; i < 4; ++i) {
    const double x = kLeft + 90.0 * static_cast<double>(i);
    canvas.rectangle(x, 28, 10, 10, filled(kColors[i]));
    canvas.text(x + 14, 37, kNames[i], text);
  }
  for (Rank rank = 0; rank < rows; ++rank) {
    canvas.text(kLeft - 6, kTop + rank * kRow + 11, fmt::format("rank {}", rank), text_before);
  }
  for (const Span& span : report.timeline) {
    canvas.rectangle(kLeft + static_cast<double>(span.begin_ps) * scale, kTop + span.rank * kRow,
                     std::max(0.2, static_cast<double>(span.end_ps - span.begin_ps) * scale),
                     kRow - 3, filled(kColors[static_cast<size_t>(span.kind)]));
  }
  canvas.text(kLeft, height - 10, "0", text);
  canvas.text(kLeft + kWidth, height - 10, text_of_time(report.total_ps), text_before);
  return canvas.finish(kLeft + kWidth + 20, height, title);
}

}  // namespace weir::sim
