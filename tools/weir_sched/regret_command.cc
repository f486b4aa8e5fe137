// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <ctime>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "command_line/command_line.h"
#include "core/base/private_files.h"
#include "core/cost/cache.h"
#include "core/sim/regret.h"
#include "core/sim/report.h"
#include "output/output_file.h"
#include "weir_sched/commands.h"
#include "weir_sched/problem_options.h"
#include "weir_sched/regret_machine.h"

namespace weir::sched_tool {
namespace {

constexpr Rank kRanksMax = 10'240;
constexpr uint64_t kEventsMin = 1 << 20;  // simulations look at the limit so often
constexpr double kGoodRegret = 1.1;
constexpr double kWorstRegret = 1.3;
constexpr size_t kPageBytesMax = 4 << 20;
constexpr size_t kRowsMax = 24;  // of the cells above it

struct RegretOptions {
  std::vector<std::string> machines = {"8", "8x8:fabric", "1"};
  std::string ranks = "2,8,16,64,128,512,1024,4096";
  std::vector<std::string> sizes = {"8", "256", "4K", "64K", "1M", "16M", "256M"};
  std::vector<std::string> collectives;
  std::string costs_file;
  uint64_t events_max = 40'000'000;
  uint32_t jobs = 1;
  bool choices_only = false;
  bool by_links = false;
  bool json = false;
  std::string publish_file;
};

// One call on one machine, and what came out.
struct Cell {
  const RegretMachine* machine = nullptr;
  Rank rank_count = 0;
  uint32_t host_count = 1;
  Collective collective = Collective::kAllReduce;
  uint64_t bytes = 0;

  std::string error;  // why it is left out; empty: it is not
  std::string choice;
  double predicted_ns = 0;
  double choice_ms = 0;  // of a processor, for the choice
  sim::Regret regret;
};

Result<uint64_t> parse_size(const std::string& text) {
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  const std::string unit(stop, end);
  const int shift = unit.empty() ? 0 : unit == "K" ? 10 : unit == "M" ? 20 : unit == "G" ? 30 : -1;
  if (error != std::errc() || shift < 0 || value > (uint64_t{1} << 40 >> shift)) {
    return invalid_argument(
        fmt::format("--bytes: \"{}\" is not a size such as 4096, 64K, 1M or 1G", text));
  }
  return value << shift;
}

// Time that this thread has had, so that other work on the machine does not count.
double processor_ms() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

std::string text_of_size(uint64_t bytes) {
  for (const auto& [shift, unit] : {std::pair{30, "GiB"}, {20, "MiB"}, {10, "KiB"}}) {
    if (bytes >> shift != 0 && bytes % (uint64_t{1} << shift) == 0) {
      return fmt::format("{} {}", bytes >> shift, unit);
    }
  }
  return fmt::format("{} B", bytes);
}

std::string text_of_ns(double ns) { return sim::text_of_time(static_cast<uint64_t>(ns * 1000)); }

std::string text_of_cell(const Cell& cell) {
  return fmt::format("{}, {} ranks, {} of {}", cell.machine->name, cell.rank_count,
                     name_of(cell.collective), text_of_size(cell.bytes));
}

bool has_blocks(Collective collective) { return cost::block_count(collective, 2) > 1; }

Result<std::vector<Cell>> cells_of(const RegretOptions& given,
                                   const std::vector<RegretMachine>& machines) {
  const Result<std::vector<Rank>> ranks = parse_rank_counts(given.ranks, kRanksMax);
  if (!ranks.ok()) return ranks.status();
  if (ranks.value().back() < 2) return invalid_argument("--ranks: at least two ranks are needed");
  std::vector<Collective> collectives;
  for (const std::string& name : given.collectives) {
    const Result<algo::NamedCollective> named = parse_collective(name);
    if (!named.ok()) return named.status();
    collectives.push_back(named.value().collective);
  }
  if (collectives.empty()) {
    for (uint32_t i = 0; i < static_cast<uint32_t>(Collective::kSendRecv); ++i) {
      collectives.push_back(static_cast<Collective>(i));
    }
  }
  std::vector<Cell> cells;
  for (const RegretMachine& machine : machines) {
    for (const Rank rank_count : ranks.value()) {
      if (rank_count < 2) continue;
      for (const Collective collective : collectives) {
        for (const std::string& text : given.sizes) {
          const Result<uint64_t> bytes = parse_size(text);
          if (!bytes.ok()) return bytes.status();
          // Blocks hold a float or more.
          if (has_blocks(collective) && bytes.value() < 4 * uint64_t{rank_count}) continue;
          Cell cell;
          cell.machine = &machine;
          cell.rank_count = rank_count;
          cell.collective = collective;
          cell.bytes = collective == Collective::kBarrier ? 0 : bytes.value();
          cells.push_back(cell);
          if (collective == Collective::kBarrier) break;
        }
      }
    }
  }
  return cells;
}

void judge(Cell* cell, const RegretOptions& given,
           const std::function<bool(const char*, uint64_t)>& progress) {
  const RegretHosts hosts(*cell->machine, cell->rank_count);
  if (!hosts.status().ok()) {
    cell->error = hosts.status().text();
    return;
  }
  cell->host_count = hosts.host_count();
  const cost::Request request = hosts.request(cell->collective, cell->bytes);
  const std::vector<const algo::Algorithm*> candidates =
      cost::candidates_for(algo::all_algorithms(), request.work.problem);
  const double begin_ms = processor_ms();
  const Result<cost::Decision> decision =
      cost::choose(request, candidates, cell->machine->table, nullptr);
  cell->choice_ms = processor_ms() - begin_ms;
  if (!decision.ok()) {
    cell->error = decision.status().text();
    return;
  }
  cell->choice = decision.value().algorithm->name;
  if (!request.slices.empty()) {
    cell->choice += fmt::format(" in slices of {}", text_of_size(decision.value().slice_bytes));
  }
  cell->predicted_ns = decision.value().predicted_ns;
  if (given.choices_only) {
    cell->error = "not asked for";
    return;
  }
  Result<sim::Regret> regret = sim::regret(request, decision.value(), cell->machine->table,
                                           given.events_max, progress, hosts.links());
  if (!regret.ok()) {
    cell->error = regret.status().code() == Code::kAborted
                      ? fmt::format("the choice, {}, takes more than {} events", cell->choice,
                                    given.events_max)
                      : regret.status().text();
    return;
  }
  cell->regret = regret.take();
}

void judge_all(const RegretOptions& given, std::vector<Cell>* cells) {
  std::atomic<size_t> next = 0;
  std::atomic<size_t> done = 0;
  std::mutex mutex;
  const bool shows = isatty(STDERR_FILENO) != 0;
  const auto show = [&](const Cell& cell, const char* algorithm, uint64_t events) {
    if (!shows) return;
    const std::lock_guard lock(mutex);
    fmt::print(stderr, "\r{:<100.100}",
               fmt::format("{} of {}: {}: {}, {} M events", done.load(), cells->size(),
                           text_of_cell(cell), algorithm, events / 1'000'000));
    std::fflush(stderr);
  };
  const auto work = [&] {
    for (size_t i = next++; i < cells->size(); i = next++) {
      Cell& cell = (*cells)[i];
      show(cell, "choice", 0);
      judge(&cell, given, [&](const char* name, uint64_t events) {
        show(cell, name, events);
        return true;
      });
      ++done;
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t i = 1; i < given.jobs; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (shows) fmt::print(stderr, "\r{:100}\r", "");
}

// ---- Output -----------------------------------------------------------------------------------

struct Summary {
  std::vector<const Cell*> by_regret;  // those that were judged, the worst first
  std::vector<const Cell*> not_judged;
  size_t partly = 0;             // a candidate was left out
  double choice_ms[2] = {0, 0};  // the longest: up to 128 ranks, above

  double at(double share) const {
    if (by_regret.empty()) return 0;
    const auto index = static_cast<size_t>((1 - share) * static_cast<double>(by_regret.size()));
    return by_regret[std::min(index, by_regret.size() - 1)]->regret.value();
  }
};

Summary summary_of(const std::vector<Cell>& cells) {
  Summary summary;
  for (const Cell& cell : cells) {
    (cell.error.empty() ? summary.by_regret : summary.not_judged).push_back(&cell);
    summary.partly += cell.regret.left_out.empty() ? 0 : 1;
    double& longest = summary.choice_ms[cell.rank_count > 128];
    longest = std::max(longest, cell.choice_ms);
  }
  std::stable_sort(
      summary.by_regret.begin(), summary.by_regret.end(),
      [](const Cell* a, const Cell* b) { return a->regret.value() > b->regret.value(); });
  return summary;
}

std::string summary_line(const Summary& summary, size_t count) {
  return fmt::format(
      "{} of {} calls judged: worst regret {:.2f}, nine of ten at most {:.2f}, half at most "
      "{:.2f}. "
      "In {} a slower candidate was not simulated to its end for want of events. A choice took at "
      "most {:.1f} ms up to 128 ranks, {:.1f} ms above",
      summary.by_regret.size(), count, summary.at(1), summary.at(0.9), summary.at(0.5),
      summary.partly, summary.choice_ms[0], summary.choice_ms[1]);
}

// Of a machine and a rank count, by collective: the worst regret and its size.
std::string markdown_table(const std::vector<Cell>& cells) {
  std::vector<Collective> collectives;
  for (const Cell& cell : cells) {
    if (std::find(collectives.begin(), collectives.end(), cell.collective) == collectives.end()) {
      collectives.push_back(cell.collective);
    }
  }
  std::string text = "| a host | ranks |";
  std::string line = "| --- | ---: |";
  for (const Collective collective : collectives) {
    text += fmt::format(" {} |", name_of(collective));
    line += " ---: |";
  }
  text += " choice, ms |\n" + line + " ---: |\n";
  for (size_t i = 0; i < cells.size();) {
    size_t end = i;
    std::map<Collective, const Cell*> worst;
    double choice_ms = 0;
    for (; end < cells.size() && cells[end].machine == cells[i].machine &&
           cells[end].rank_count == cells[i].rank_count;
         ++end) {
      const Cell& cell = cells[end];
      choice_ms = std::max(choice_ms, cell.choice_ms);
      if (!cell.error.empty()) continue;
      const Cell*& one = worst[cell.collective];
      if (one == nullptr || cell.regret.value() > one->regret.value()) one = &cell;
    }
    text += fmt::format("| {} | {} |", cells[i].machine->name, cells[i].rank_count);
    for (const Collective collective : collectives) {
      const Cell* cell = worst[collective];
      text += cell == nullptr ? " |"
              : cell->regret.value() < 1.005
                  ? " 1 |"
                  : fmt::format(" {:.2f} ({}) |", cell->regret.value(), text_of_size(cell->bytes));
    }
    text += fmt::format(" {:.1f} |\n", choice_ms);
    i = end;
  }
  return text;
}

std::string name_of_best(const sim::Regret& regret) {
  if (regret.best_cut.slice_bytes == 0) return regret.best->name;
  return fmt::format("{} in slices of {}", regret.best->name,
                     text_of_size(regret.best_cut.slice_bytes));
}

std::string worst_rows(const Summary& summary, bool markdown) {
  std::string text;
  size_t rows = 0;
  for (const Cell* cell : summary.by_regret) {
    if (cell->regret.value() <= kGoodRegret || ++rows > kRowsMax) break;
    const sim::Regret& regret = cell->regret;
    text += fmt::format(
        fmt::runtime(markdown ? "| {} | {:.2f} | {}, {} (predicted {}) | {}, {} |\n"
                              : "  {}: {:.2f}: chose {}, {} (predicted {}); best {}, {}\n"),
        text_of_cell(*cell), regret.value(), cell->choice, text_of_ns(regret.chosen_ns),
        text_of_ns(cell->predicted_ns), name_of_best(regret), text_of_ns(regret.best_ns));
  }
  if (!markdown || text.empty()) return text;
  return "\n| call | regret | choice, simulated | best |\n| --- | ---: | --- | --- |\n" + text;
}

std::string to_json(const std::vector<Cell>& cells) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Cell& cell : cells) {
    nlohmann::ordered_json one = {{"machine", cell.machine->name},
                                  {"ranks_per_host", cell.machine->ranks_per_host},
                                  {"cards_per_host", cell.machine->cards_per_host},
                                  {"network", name_of(cell.machine->network)},
                                  {"ranks", cell.rank_count},
                                  {"hosts", cell.host_count},
                                  {"collective", name_of(cell.collective)},
                                  {"bytes", cell.bytes},
                                  {"choice", cell.choice},
                                  {"choice_ms", cell.choice_ms},
                                  {"predicted_ns", cell.predicted_ns}};
    if (cell.error.empty()) {
      one["simulated_ns"] = cell.regret.chosen_ns;
      one["best"] = cell.regret.best->name;
      one["best_ns"] = cell.regret.best_ns;
      one["regret"] = cell.regret.value();
      one["left_out"] = nlohmann::ordered_json::array();
      for (const algo::Algorithm* algorithm : cell.regret.left_out) {
        one["left_out"].push_back(algorithm->name);
      }
    } else {
      one["not_judged"] = cell.error;
    }
    list.push_back(std::move(one));
  }
  return list.dump(1) + "\n";
}

std::string command_line_of(const RegretOptions& given) {
  const auto joined = [](const std::vector<std::string>& parts) {
    std::string text;
    for (const std::string& part : parts) text += (text.empty() ? "" : ",") + part;
    return text;
  };
  std::string text = "weir-sched regret";
  for (const std::string& machine : given.machines) text += " --machine " + machine;
  text += fmt::format(" --ranks {} --bytes {}", given.ranks, joined(given.sizes));
  if (!given.collectives.empty()) text += " -c " + joined(given.collectives);
  if (!given.costs_file.empty()) text += " --costs " + given.costs_file;
  if (given.by_links) text += " --links";
  return text + fmt::format(" --events-max {}", given.events_max);
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  return fmt::format("{}-{:02}-{:02}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday);
}

// Replaces the text between the markers.
Status publish(const std::string& path, const std::string& text) {
  Result<std::string> page = read_any_file(path, kPageBytesMax);
  if (!page.ok()) return page.status().with_context("--publish");
  std::string all = page.take();
  const std::string begin = "<!-- regret:begin -->\n";
  const size_t from = all.find(begin);
  const size_t to = all.find("<!-- regret:end -->");
  if (from == std::string::npos || to == std::string::npos) {
    return invalid_argument(path + ": has no lines <!-- regret:begin --> and <!-- regret:end -->");
  }
  all = all.substr(0, from + begin.size()) + text + all.substr(to);
  const std::string wrong = output::write_file(path, all);
  return wrong.empty() ? Status() : Status(Code::kSystem, wrong);
}

Status run(const RegretOptions& given) {
  cost::Table table = cost::built_in_table();
  if (!given.costs_file.empty()) {
    const Result<cost::Table> read = cost::read_table(given.costs_file);
    if (!read.ok()) return read.status();
    table = read.value();
  }
  std::vector<RegretMachine> machines;
  for (const std::string& text : given.machines) {
    Result<RegretMachine> machine = read_regret_machine(text, table, given.by_links);
    if (!machine.ok()) return machine.status();
    machines.push_back(machine.take());
  }
  Result<std::vector<Cell>> made = cells_of(given, machines);
  if (!made.ok()) return made.status();
  std::vector<Cell> cells = made.take();
  judge_all(given, &cells);
  const Summary summary = summary_of(cells);
  if (given.json) {
    fmt::print("{}", to_json(cells));
  } else {
    fmt::print("{}\n{}.\n", markdown_table(cells), summary_line(summary, cells.size()));
    if (!summary.by_regret.empty())
      fmt::print("Above {}:\n{}", kGoodRegret, worst_rows(summary, false));
    for (const Cell* cell : summary.not_judged) {
      if (given.choices_only) break;
      fmt::print("not judged: {}: {}\n", text_of_cell(*cell), cell->error);
    }
  }
  if (given.publish_file.empty()) return {};
  std::string text = fmt::format("{}: `{}`. {}.\n\n{}{}", today(), command_line_of(given),
                                 summary_line(summary, cells.size()), markdown_table(cells),
                                 worst_rows(summary, true));
  if (!summary.not_judged.empty()) {
    text += fmt::format("\nNot judged, because the choice takes more events: {} calls.\n",
                        summary.not_judged.size());
  }
  return publish(given.publish_file, text);
}

}  // namespace

void add_regret_command(cli::Command& app, int* exit_code) {
  cli::Command command =
      app.add_subcommand("regret", "How good the choices among algorithms are, by simulation");
  const auto given = std::make_shared<RegretOptions>();
  command
      .add_option("--machine", given->machines,
                  "a host: RANKSxCARDS:NETWORK (8, 8x4, 8x8:fabric), with a speed of each host's "
                  "network in turns (1:tcp:400+400+50, Mbit/s), or hwloc's or NCCL's XML of one; "
                  "several are judged one after another")
      .value_name("HOST")
      .delimiter(',');
  command.add_option("-n,--ranks", given->ranks, "numbers of ranks: 2,8,16..32").show_default();
  command.add_option("-b,--bytes", given->sizes, "sizes of the largest buffer of a rank: 8,64K,16M")
      .delimiter(',');
  command.add_option("-c,--collective", given->collectives, "all, if none is given").delimiter(',');
  command.add_option("--costs", given->costs_file,
                     "measured costs (a table of task times) instead of the built-in ones");
  command
      .add_option("--events-max", given->events_max,
                  "events of one simulation, which are counted in steps of 1048576; candidates "
                  "that need more are left out")
      .range<uint64_t>(kEventsMin, ~uint64_t{0})
      .show_default();
  command.add_option("--jobs", given->jobs, "calls judged side by side")
      .range<uint32_t>(1, 64)
      .show_default();
  command.add_flag("--choices-only", given->choices_only,
                   "only what is chosen and how long the choice takes; nothing is simulated");
  command.add_flag("--links", given->by_links,
                   "over the links of machines that files describe; buffers of ranks on GPUs lie "
                   "on these");
  command.add_flag("--json", given->json, "every call as JSON on standard output");
  command.add_option("--publish", given->publish_file,
                     "writes the table into this file, between <!-- regret:begin --> and "
                     "<!-- regret:end -->");
  command.footer(fmt::format(
      "Regret is the simulated time of the choice over the least simulated time of a candidate; "
      "the "
      "goal\nis {} in nine of ten calls and {} at worst. Example:\n"
      "  weir-sched regret --machine 8x8:fabric --machine machine.xml --ranks 16,128 -c all_reduce",
      kGoodRegret, kWorstRegret));
  command.on_parsed([given, exit_code] {
    const Status status = run(*given);
    if (status.ok()) return;
    fmt::print(stderr, "weir-sched regret: {}\n", status.text());
    *exit_code = kExitInput;
  });
}

}  // namespace weir::sched_tool
