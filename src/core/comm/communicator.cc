// SPDX-License-Identifier: Apache-2.0
// Making and ending a communicator. Its daily work is in progress.cc, trouble in health.cc, windows
// in windows.cc.
#include "core/comm/communicator.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/per_process.h"
#include "core/base/settings.h"
#include "core/comm/bootstrap.h"
#include "core/comm/introduction.h"
#include "core/comm/measured_table.h"
#include "core/comm/process.h"
#include "core/comm/rank_list.h"
#include "core/plugin/registry.h"

namespace weir::comm {

namespace {

void host_log(void*, int level, const char* text) {
  log(static_cast<LogLevel>(std::clamp(level, 0, 4)), text);
}
const char* host_setting(void*, const char* name) {
  const std::string_view view = name;
  if (view.substr(0, 5) != "WEIR_" && view.substr(0, 5) != "NCCL_") return nullptr;
  return std::getenv(name);
}

// What ranks must agree on of a tuning file.
std::string describe_rules(const cost::Rules& rules) {
  std::string text;
  for (const cost::Rule& rule : rules.rules) {
    text += fmt::format("[{}={} {}-{} bytes {}-{} ranks slice {}]", weir::name_of(rule.collective),
                        rule.algorithm->name, rule.bytes_min, rule.bytes_max, rule.ranks_min,
                        rule.ranks_max, rule.slice_bytes);
  }
  return text.empty() ? "none" : text;
}

std::vector<std::string> names_in(const std::string& list) {
  std::vector<std::string> names;
  for (size_t at = 0; at <= list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    names.push_back(list.substr(at, comma - at));
    at = comma + 1;
  }
  return names;
}

// The ranks of such a transport must be able to map each other's memory.
bool needs_one_host(const weir_transport_functions_t& transport) {
  return (transport.caps.bits & WEIR_CAP_SEGMENT) != 0;
}

enum class Spread : uint8_t {
  kOneHost,
  kOneRankPerHost,
  kHosts,  // of which one or more have several ranks
};

// Sealed where WEIR_TLS wants it and the transport does not encrypt, unless WEIR_HOOKS says where the seal lies.
Result<const weir_transport_functions_t*> seal(const weir_transport_functions_t* transport,
                                               const Settings& settings, const std::string& hooks) {
  const std::vector<std::string> names = names_in(hooks);
  if (std::find(names.begin(), names.end(), "seal") != names.end()) return transport;
  return plugin::sealed_for(settings.tls.c_str(), transport);
}

// With what WEIR_FAILOVER names behind it and WEIR_HOOKS around it. The hook fault then lies around each
// transport but the last: what it does is for the next one to make up for.
Result<const weir_transport_functions_t*> dress(const weir_transport_functions_t* bare,
                                                const Settings& settings,
                                                const std::string& hooks) {
  const auto sealed = seal(bare, settings, hooks);
  if (!sealed.ok()) return sealed;
  const weir_transport_functions_t* const transport = sealed.value();
  if (settings.failover.empty() || needs_one_host(*transport) ||
      transport->caps.rank_count_max < 2) {
    return plugin::wrap_with_hooks(transport, hooks);
  }
  std::vector<const weir_transport_functions_t*> chain = {transport};
  for (const std::string& name : names_in(settings.failover)) {
    auto found = plugin::find_transport(name);
    if (!found.ok()) return found.status().with_context("WEIR_FAILOVER");
    auto next = seal(found.value(), settings, hooks);
    if (!next.ok()) return next;
    chain.push_back(next.value());
  }
  std::string outside;
  for (const std::string& hook : names_in(hooks)) {
    if (hook != "fault") {
      outside += (outside.empty() ? "" : ",") + hook;
      continue;
    }
    for (size_t i = 0; i + 1 < chain.size(); ++i) {
      auto faulty = plugin::wrap_with_hooks(chain[i], hook);
      if (!faulty.ok()) return faulty;
      chain[i] = faulty.value();
    }
  }
  auto made = plugin::make_failover(chain);
  if (!made.ok()) return made;
  return plugin::wrap_with_hooks(made.value(), outside);
}

// The best of those that WEIR_TRANSPORT names, or of all.
Result<const weir_transport_functions_t*> choose_transport(const Settings& settings,
                                                           const weir_host_t& host, Rank rank_count,
                                                           Spread spread) {
  const std::vector<std::string> wanted = names_in(settings.transport);
  if (wanted.size() == 1 && !wanted[0].empty()) {
    auto found = plugin::find_transport(wanted[0]);
    if (!found.ok()) return found.status().with_context("WEIR_TRANSPORT");
    if ((found.value()->caps.bits & WEIR_CAP_SEND_RECV) == 0) {
      return Status(Code::kUnsupported,
                    fmt::format("transport '{}' carries no messages: leave it out of "
                                "WEIR_TRANSPORT, it is found where it is needed",
                                wanted[0]));
    }
    if (found.value()->caps.rank_count_max < rank_count) {
      return Status(Code::kUnsupported,
                    fmt::format("transport '{}' holds {} ranks at most, not {}", wanted[0],
                                found.value()->caps.rank_count_max, rank_count));
    }
    return dress(found.value(), settings, settings.hooks);
  }
  if (settings.transport.empty() && rank_count == 1) {
    auto self = plugin::find_transport("self");
    if (!self.ok()) return self.status();
    return plugin::wrap_with_hooks(self.value(), settings.hooks);
  }
  if (!settings.transport.empty()) {
    for (const std::string& name : wanted) {
      auto found = plugin::find_transport(name);
      if (!found.ok()) return found.status().with_context("WEIR_TRANSPORT");
    }
  }
  std::string reasons;
  bool shares_memory = false;
  for (const plugin::Viability& entry : plugin::list_transports(host)) {
    const std::string name = entry.transport->name;
    if (!settings.transport.empty() &&
        std::find(wanted.begin(), wanted.end(), name) == wanted.end()) {
      continue;
    }
    std::string reason;
    if (!entry.viable) {
      reason = entry.reason;
    } else if (entry.transport->caps.rank_count_max < rank_count) {
      reason = "too few ranks";
    } else if ((entry.transport->caps.bits & WEIR_CAP_SEND_RECV) == 0) {
      reason = "carries no messages";
    } else if (spread != Spread::kOneHost && needs_one_host(*entry.transport)) {
      reason = "the ranks are on several hosts";
      shares_memory = shares_memory || name == "shm";
    } else {
      std::string hooks = settings.hooks;
      if (spread == Spread::kHosts && shares_memory) hooks += hooks.empty() ? "hosts" : ",hosts";
      return dress(entry.transport, settings, hooks);
    }
    reasons += fmt::format("; {}: {}", name, reason);
  }
  return Status(Code::kUnsupported,
                fmt::format("no transport for {} ranks{}", rank_count, reasons));
}

}  // namespace

Result<std::unique_ptr<Communicator>> Communicator::create(const Secret& secret, Rank rank,
                                                           Rank rank_count,
                                                           const CommOptions& options,
                                                           const Place& place,
                                                           const JoinOptions& joining) {
  std::unique_ptr<Communicator> comm(new Communicator());
  Status status = comm->join(secret, rank, rank_count, options, place, joining);
  if (!status.ok()) {
    return status.with_context(
        fmt::format("rank {} of {} creating communicator '{}'", rank, rank_count, comm->name_));
  }
  register_communicator(comm.get());
  return comm;
}

void Communicator::open_segment(const weir_segment_t& segment) {
  context_.segment_base = segment.base;
  context_.segment_stride_bytes = segment.stride_bytes;
  context_.staging_bytes = segment.bytes_per_rank - engine::kStagingOffset;
  beats_.resize(context_.rank_count);
}

Status Communicator::transport_failed(const char* what, weir_result_t result) const {
  return Status(
      static_cast<Code>(result),
      fmt::format("transport '{}', {}: {}", context_.transport->name, what, transport_error_));
}

Status Communicator::introduce(Bootstrap& bootstrap, const weir_transport_config_t& config,
                               Introduction self, uint64_t deadline_ns,
                               std::vector<Introduction>* all) {
  weir_result_t result = context_.transport->open(&host_, &config, &context_.instance);
  if (result != WEIR_OK) return transport_failed("open", result);
  unsigned char address[WEIR_TRANSPORT_ADDRESS_BYTES_MAX];
  size_t address_bytes = sizeof address;
  result = context_.transport->address(context_.instance, address, &address_bytes);
  if (result != WEIR_OK) return transport_failed("address", result);
  self.address.assign(reinterpret_cast<char*>(address), address_bytes);
  self.settings = fmt::format("transport={} {}", context_.transport->name, self.settings);

  auto blobs = bootstrap.all_gather(self.pack(), deadline_ns);
  if (!blobs.ok()) return blobs.status();
  all->clear();
  for (Rank p = 0; p < context_.rank_count; ++p) {
    auto other = Introduction::unpack(blobs.value()[p], p);
    if (!other.ok()) return other.status();
    all->push_back(other.take());
    if ((*all)[p].settings != (*all)[0].settings) {
      return Status(Code::kMismatch, fmt::format("ranks 0 and {} must run with the same settings; "
                                                 "rank 0: {}; rank {}: {}",
                                                 p, (*all)[0].settings, p, (*all)[p].settings));
    }
  }
  return Status();
}

Status Communicator::join(const Secret& secret, Rank rank, Rank rank_count,
                          const CommOptions& options, const Place& place, JoinOptions joining) {
  name_ =
      options.name.empty() ? fmt::format("{:08x}", secret.public_id() & 0xffffffffu) : options.name;
  if (rank_count == 0 || rank_count > kRankCountMax || rank >= rank_count) {
    return invalid_argument(
        fmt::format("rank {} of {}: a rank is at least 0 and below the rank "
                    "count, which is from 1 to {}",
                    rank, rank_count, kRankCountMax));
  }
  const Result<Settings>& process = process_settings();
  if (!process.ok()) return process.status();
  Settings settings = process.value();
  if (!options.transport.empty()) settings.transport = options.transport;
  const ClockReading earlier = ClockReading::now();
  secret_ = secret;
  timeout_ms_ = options.timeout_ms > 0 ? options.timeout_ms : settings.timeout_ms;
  const uint64_t began_ns = now_ns();
  const uint64_t deadline_ns = began_ns + static_cast<uint64_t>(timeout_ms_) * 1'000'000u;
  const bool deterministic = options.deterministic || settings.deterministic;
  deterministic_ = deterministic;
  host_memory_ = options.host_memory;
  if (!host_memory_) look_for_driver();
  WEIR_RETURN_IF_ERROR(plugin::check_fault(settings.fault, settings.hooks));
  auto forced = engine::parse_forced_algorithms(settings.algorithm);
  if (!forced.ok()) return forced.status();
  Result<cost::Rules> rules = settings.tuning_file.empty() ? Result<cost::Rules>(cost::Rules{})
                                                           : cost::load_rules(settings.tuning_file);
  if (!rules.ok()) return rules.status().with_context("WEIR_TUNING_FILE");

  host_.struct_bytes = sizeof host_;
  host_.context = this;
  host_.error = [](void* self, const char* text) {
    static_cast<Communicator*>(self)->transport_error_ = text;
  };
  host_.log = host_log;
  host_.setting = host_setting;
  host_.look = [](void* self) { return static_cast<Communicator*>(self)->look_while_connecting(); };
  // Where only memory is shared, nobody is looked for elsewhere.
  bool anywhere = true;
  if (!settings.transport.empty() && settings.transport.find(',') == std::string::npos) {
    const auto named = plugin::find_transport(settings.transport);
    anywhere = !named.ok() || !needs_one_host(*named.value());
  }
  if (anywhere) WEIR_RETURN_IF_ERROR(check_interfaces());
  auto transport = choose_transport(settings, host_, rank_count, Spread::kOneHost);
  if (!transport.ok()) return transport.status();
  context_.rank = rank;
  context_.rank_count = rank_count;
  context_.transport = transport.value();
  context_.peers.resize(rank_count);

  const Place reach = anywhere ? place : Place();
  StartTimes& times = start_times_;
  joining.began_ns = began_ns;
  auto bootstrap = Bootstrap::join(secret, rank, rank_count, deadline_ns, reach, joining);
  if (!bootstrap.ok()) return bootstrap.status();
  times.rendezvous_ns = bootstrap.value()->times().rendezvous_ns;
  times.handshake_ns = bootstrap.value()->times().handshake_ns;
  times.mark(nullptr);

  const Secret transport_secret = secret.derive("transport");
  weir_transport_config_t config{};
  config.struct_bytes = sizeof config;
  config.rank = rank;
  config.rank_count = rank_count;
  config.comm_id = secret.public_id();
  config.secret = transport_secret.bytes.data();
  config.secret_bytes = transport_secret.bytes.size();
  config.segment_bytes = engine::kStagingOffset + static_cast<uint64_t>(settings.staging_bytes);
  config.huge_pages = settings.huge_pages;

  Introduction self = introduce_this_process();
  if (!reach.empty()) self.place = pack(place_of_this_host());
  self.settings = fmt::format(
      "hooks={} deterministic={} WEIR_STAGING_BYTES={} WEIR_SLICE_BYTES={} "
      "WEIR_ALGORITHM='{}' WEIR_TLS={} rules={}",
      settings.hooks, deterministic, settings.staging_bytes, settings.slice_bytes,
      settings.algorithm, settings.tls, describe_rules(rules.value()));
  std::vector<Introduction> all;
  WEIR_RETURN_IF_ERROR(introduce(*bootstrap.value(), config, self, deadline_ns, &all));
  const std::vector<uint32_t> hosts = host_of_rank(all);
  const bool one_host = hosts.empty();
  leaves_host_ = !one_host;
  if (!one_host && anywhere) {
    const bool alone = *std::max_element(hosts.begin(), hosts.end()) + 1 == rank_count;
    auto between = choose_transport(settings, host_, rank_count,
                                    alone ? Spread::kOneRankPerHost : Spread::kHosts);
    if (!between.ok()) return between.status();
    if (between.value() != context_.transport) {
      context_.transport->close(context_.instance);
      context_.instance = nullptr;
      context_.transport = between.value();
      WEIR_RETURN_IF_ERROR(introduce(*bootstrap.value(), config, self, deadline_ns, &all));
    }
    for (Rank p = 0; p < rank_count; ++p) {
      Place found;
      if (!all[p].place.empty() && !unpack(all[p].place, &found)) {
        return Status(Code::kRefused, fmt::format("rank {} told addresses that cannot be read", p));
      }
      places_.push_back(std::move(found));
    }
  }
  times.mark(&times.exchange_ns);
  std::vector<const unsigned char*> addresses;
  std::vector<size_t> sizes;
  for (const Introduction& it : all) {
    addresses.push_back(reinterpret_cast<const unsigned char*>(it.address.data()));
    sizes.push_back(it.address.size());
  }
  bootstrap_ = bootstrap.value().get();
  weir_result_t result =
      context_.transport->connect(context_.instance, addresses.data(), sizes.data(), deadline_ns);
  bootstrap_ = nullptr;
  // From here on whoever fails tells the others, which may be further.
  const auto give_up = [&](const char* what) {
    return bootstrap.value()->give_up(
        transport_failed(what, result).with_context(fmt::format("rank {}", rank)));
  };
  if (result != WEIR_OK) return give_up("connect");
  times.mark(&times.connect_ns);

  if ((context_.transport->caps.bits & WEIR_CAP_SEGMENT) != 0) {
    weir_segment_t segment{};
    result = context_.transport->segment(context_.instance, &segment);
    if (result != WEIR_OK) return give_up("segment");
    open_segment(segment);
  } else if (rank_count == 1 && settings.hooks.empty()) {
    const uint64_t bytes = (config.segment_bytes + 4095) / 4096 * 4096;
    private_segment_.reset(static_cast<unsigned char*>(std::aligned_alloc(4096, bytes)));
    if (private_segment_ == nullptr) return Status(Code::kNoMemory, "staging memory");
    std::memset(private_segment_.get(), 0, engine::kStagingOffset);
    open_segment({private_segment_.get(), bytes, bytes});
  }

  if (context_.mapped()) {
    context_.control(rank).health.state.store(static_cast<uint32_t>(engine::RankState::kHealthy),
                                              std::memory_order_release);
  }
  board_.open(context_);
  auto table =
      agree_on_table(*bootstrap.value(), context_, settings, all, deadline_ns, transport_error_);
  if (!table.ok()) return table.status();
  times.mark(&times.costs_ns);
  log_info(fmt::format("communicator '{}': rank {} of {} started in {}", name_, rank, rank_count,
                       times.describe()));

  const bool shared = shares_cores(all, rank);
  bool any_shared = false;  // plans must be the same on every rank
  for (Rank p = 0; p < rank_count; ++p) any_shared = any_shared || shares_cores(all, p);
  wait_policy_ = settings.spin_us >= 0 ? WaitPolicy::spin_for(settings.spin_us)
                 : shared              ? WaitPolicy::with_shared_core()
                                       : WaitPolicy::with_own_core();
  engine::PlannerOptions planner;
  planner.deterministic = deterministic;
  planner.shared_cores = any_shared;
  planner.slice_bytes = static_cast<uint64_t>(settings.slice_bytes);
  planner.forced = forced.take();
  planner.table = table.take();
  planner.rules = rules.take();
  planner.explain = settings.explain;
  planner.core_count = cores_per_host(all);
  planner.node_of_rank = hosts;
  planner_ = std::make_unique<engine::Planner>(context_, std::move(planner));
  awaited_ranks_.reserve(64 + 4 * size_t{rank_count});
  if (settings.recorder && rank_count > 1) open_recorder(config.comm_id, all, earlier);
  return Status();
}

weir_result_t Communicator::look_while_connecting() {
  if (bootstrap_ == nullptr) return WEIR_OK;
  const Status seen = bootstrap_->look();
  if (!seen.ok()) transport_error_ = seen.text();
  return static_cast<weir_result_t>(seen.code());
}

std::string Communicator::way_to(Rank peer) const {
  const weir_transport_functions_t& transport = *context_.transport;
  constexpr size_t kEnd = offsetof(weir_transport_functions_t, describe_peer) + sizeof(void*);
  if (transport.struct_bytes < kEnd || transport.describe_peer == nullptr) return std::string();
  char text[kWayTextBytesMax + 1] = {};
  transport.describe_peer(context_.instance, peer, text, sizeof text);
  return std::string(text, strnlen(text, sizeof text - 1));
}

// What a transport finds out on the way, such as how to send what is large.
void Communicator::record_ways(uint64_t now_ns) {
  constexpr uint64_t kIntervalNs = 500'000'000;
  if (now_ns - ways_recorded_ns_ < kIntervalNs) return;
  ways_recorded_ns_ = now_ns;
  for (Rank p = 0; p < context_.rank_count; ++p) {
    if (p != context_.rank) recorder_.way_changed(p, way_to(p));
  }
}

void Communicator::open_recorder(uint64_t comm_id, const std::vector<Introduction>& all,
                                 const ClockReading& earlier) {
  RecorderIdentity identity;
  // Addresses differ from run to run, and every rank knows all of them.
  std::string addresses(reinterpret_cast<const char*>(&comm_id), sizeof comm_id);
  for (const Introduction& it : all) addresses += it.address;
  identity.comm_id = comm_id;
  identity.instance = XXH3_64bits(addresses.data(), addresses.size());
  identity.rank = context_.rank;
  identity.rank_count = context_.rank_count;
  identity.name = name_;
  identity.transport = context_.transport->name;
  identity.earlier = earlier;
  identity.start = start_times_;
  constexpr size_t kGrowth = 64;
  for (Rank p = 0; p < context_.rank_count; ++p) {
    if (p == context_.rank) continue;
    const std::string way = way_to(p);
    identity.ways.push_back({p, way, way.size() + kGrowth});
  }
  recorder_.open(identity, process_settings().value().recorder_dir);
}

void Communicator::leave_to_parent(std::unique_ptr<Communicator> comm) {
  if (comm->lock_.try_lock()) {
    comm->lock_.unlock();
    return;
  }
  // Kept where it is found, for who looks for what is lost.
  static constinit PerProcess<std::vector<Communicator*>> kept;
  static constinit PerProcess<std::mutex> lock;
  const std::lock_guard guard(lock.get());
  kept->push_back(comm.release());
}

Communicator::~Communicator() {
  if (!maker_.is_this()) {
    // CUDA's objects do not work in a forked child, not even to be destroyed.
    (void)device_.release();
    (void)message_device_.release();
    for (const auto& request : pool_) (void)request->device.release();
    leave_requests(Status(Code::kInvalidUsage, maker_.refusal("communicator")));
    for (const Window& window : windows_) {
      if (!window.shared) close_window(window);  // the transport unmaps the others
    }
    if (context_.instance != nullptr) context_.transport->close(context_.instance);
    return;
  }
  unregister_communicator(this);
  if (planner_ != nullptr) planner_->explain_totals();
  if (device_ != nullptr) {
    std::lock_guard lock(lock_);
    poll_locked();  // what the device is done with
  }
  if (has_requests()) abort();
  const Status unfinished(Code::kAborted,
                          "the communicator was destroyed with operations in flight");
  {
    std::lock_guard lock(lock_);
    fail_all(unfinished);
  }
  if (context_.mapped()) {
    context_.control(context_.rank).health.gone.store(1, std::memory_order_release);
    context_.wake_all();
  }
  if (board_.is_open()) {
    std::lock_guard lock(lock_);
    board_.draft().gone = true;
    show_standing(false);
  }
  close_device();
  for (const Window& window : windows_) close_window(window);
  const DeviceContext::Scope scope(message_device_.get());
  if (context_.instance != nullptr) context_.transport->close(context_.instance);
  for (const auto& request : pool_) {
    drop_mark(*request);
    request->device.reset();
  }
  leave_requests(unfinished);
}

namespace {

struct SplitEntry {
  int color;
  int key;
};

}  // namespace

Result<std::unique_ptr<Communicator>> Communicator::split(int color, int key,
                                                          const CommOptions& options) {
  uint64_t number;
  {
    std::lock_guard lock(lock_);
    number = split_count_++;
  }
  const std::string label = fmt::format("split {}", number);
  const int64_t timeout_ms = options.timeout_ms > 0 ? options.timeout_ms : timeout_ms_.load();
  const uint64_t deadline_ns = now_ns() + static_cast<uint64_t>(timeout_ms) * 1'000'000u;
  JoinOptions joining;
  joining.remedy = fmt::format("every rank of '{}' must call weir_comm_split", name_);
  auto bootstrap = Bootstrap::join(secret_.derive(label), rank(), rank_count(), deadline_ns,
                                   place_of(0), joining);
  if (!bootstrap.ok()) return bootstrap.status().with_context("split of '" + name_ + "'");
  const SplitEntry mine{color, key};
  auto blobs = bootstrap.value()->all_gather(
      std::string_view(reinterpret_cast<const char*>(&mine), sizeof mine), deadline_ns);
  if (!blobs.ok()) return blobs.status().with_context("split of '" + name_ + "'");
  if (color < 0) return std::unique_ptr<Communicator>();
  std::vector<std::pair<int, Rank>> members;  // (key, old rank)
  for (Rank p = 0; p < rank_count(); ++p) {
    SplitEntry entry{};
    if (blobs.value()[p].size() != sizeof entry) {
      return Status(Code::kRefused, fmt::format("rank {} sent a split entry of {} bytes, not {}", p,
                                                blobs.value()[p].size(), sizeof entry));
    }
    std::memcpy(&entry, blobs.value()[p].data(), sizeof entry);
    if (entry.color == color) members.emplace_back(entry.key, p);
  }
  std::sort(members.begin(), members.end());
  const auto self = std::find_if(members.begin(), members.end(),
                                 [&](const auto& member) { return member.second == rank(); });
  CommOptions child = options;
  child.timeout_ms = timeout_ms;
  if (child.name.empty()) child.name = fmt::format("{}/{}.{}", name_, number, color);
  return create(secret_.derive(fmt::format("{} color {}", label, color)),
                static_cast<Rank>(self - members.begin()), static_cast<Rank>(members.size()), child,
                place_of(members[0].second));
}

Result<std::unique_ptr<Communicator>> Communicator::shrink(std::span<const Rank> excluded,
                                                           const CommOptions& options) {
  std::set<Rank> out(excluded.begin(), excluded.end());
  for (const Rank r : out) {
    if (r >= rank_count()) {
      return invalid_argument(
          fmt::format("shrink: excluded rank {} of a communicator of {}", r, rank_count()));
    }
  }
  if (out.count(rank()) != 0) {
    return invalid_argument(fmt::format("shrink: rank {} excludes itself", rank()));
  }
  // The list is part of the name: ranks that disagree on it do not meet, and the deadline names
  // them. Numbers count by list: who was left out of one shrink may take part in another.
  std::string without;
  for (const Rank r : out) without += fmt::format(" {}", r);
  uint64_t number;
  {
    std::lock_guard lock(lock_);
    number = shrink_counts_[without]++;
  }
  const std::string label = fmt::format("shrink {} without{}", number, without);
  Rank new_rank = 0;
  for (Rank r = 0; r < rank(); ++r) new_rank += out.count(r) == 0;
  Rank first = 0;
  while (out.count(first) != 0) ++first;
  CommOptions child = options;
  if (child.timeout_ms <= 0) child.timeout_ms = timeout_ms_.load();
  if (child.name.empty()) child.name = fmt::format("{}/shrunk{}", name_, number);
  JoinOptions joining;
  joining.still_possible = [&] { return check_survivors(out); };
  joining.remedy = fmt::format(
      "all of '{}'{} must call weir_comm_shrink and exclude the same ranks; exclude those as well "
      "that never will",
      name_, out.empty() ? "" : " but " + describe_ranks({out.begin(), out.end()}));
  return create(secret_.derive(label), new_rank, rank_count() - static_cast<Rank>(out.size()),
                child, place_of(first), joining);
}

// Who has died or gone since the list was made will not come: that is told now, and not at the
// deadline.
Status Communicator::check_survivors(const std::set<Rank>& out) {
  std::lock_guard lock(lock_);
  look_at_peers(now_ns());
  std::vector<Rank> lost;
  for (Rank p = 0; p < context_.rank_count; ++p) {
    if (p == context_.rank || out.count(p) != 0) continue;
    const bool ended = std::find(ended_.begin(), ended_.end(), p) != ended_.end();
    if (ended || is_gone(p)) lost.push_back(p);
  }
  if (lost.empty()) return Status();
  return Status(Code::kPeerLost,
                fmt::format("shrink of '{}': {}, before all had come to it; ask "
                            "weir_comm_lost_ranks again and exclude {} as well",
                            name_, describe_lost(lost), lost.size() == 1 ? "it" : "them"));
}

}  // namespace weir::comm
