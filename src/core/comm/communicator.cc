// SPDX-License-Identifier: Apache-2.0
// Making and ending a communicator. Its operation is in progress.cc.
#include "core/comm/communicator.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <set>
#include <thread>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/per_process.h"
#include "core/base/rank_list.h"
#include "core/base/settings.h"
#include "core/comm/device/device_memory.h"
#include "core/comm/device/nearby.h"
#include "core/comm/one_sided.h"
#include "core/comm/process.h"
#include "core/comm/start/agreed_settings.h"
#include "core/comm/start/bootstrap.h"
#include "core/comm/start/introduction.h"
#include "core/comm/start/kept_table.h"
#include "core/comm/start/machine_exchange.h"
#include "core/comm/start/measured_table.h"
#include "core/comm/start/named_algorithms.h"
#include "core/comm/start/program_files.h"
#include "core/comm/start/rank_groups.h"
#include "core/comm/watched_communicator.h"
#include "core/plugin/choice.h"
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

// How long a failed connection waits to hear of a rank's death.
constexpr uint64_t kDeathToldNs = 300'000'000;

// `transport` joins the ranks of one host only; `hosts`: of each rank.
Status needs_network(const std::string& transport, const std::vector<uint32_t>& hosts) {
  const auto other = std::find_if(hosts.begin(), hosts.end(), [](uint32_t h) { return h != 0; });
  return Status(
      Code::kUnsupported,
      fmt::format("transport '{}' needs all ranks on one host, but rank {} is on another one than "
                  "rank 0 (by kernel and network namespace, or as WEIR_HOST_ID or NCCL_HOSTID "
                  "says): unset WEIR_TRANSPORT, or list a network transport, too, such as "
                  "WEIR_TRANSPORT=shm,tcp",
                  transport, other - hosts.begin()));
}

// The transport of ranks on several hosts; `hosts`: of each rank. All ranks call it.
Result<const weir_transport_functions_t*> choose_between_hosts(const Settings& settings,
                                                               const CommState& state,
                                                               const std::vector<uint32_t>& hosts,
                                                               const std::vector<Introduction>& all,
                                                               const Exchange& exchange) {
  const auto rank_count = static_cast<Rank>(all.size());
  const bool alone = *std::max_element(hosts.begin(), hosts.end()) + 1 == rank_count;
  const auto spread = alone ? plugin::Spread::kOneRankPerHost : plugin::Spread::kHosts;
  std::vector<CardsSeen> cards;
  for (const Introduction& it : all) cards.push_back(it.cards);
  const auto over = [&](const std::string& name) {
    return plugin::choose_before_tcp(settings, state.host, rank_count, spread, name);
  };
  auto fabric = choose_fabric(
      cards, [&](const std::string& name) { return over(name).status(); }, exchange);
  if (!fabric.ok()) return fabric.status();
  const FabricChoice& choice = fabric.value();
  if (settings.explain && state.rank() == 0) {
    std::fprintf(stderr, "cards of '%s': %s: %s\n", state.name.c_str(),
                 choice.transport.empty() ? "not used"
                                          : fmt::format("{}, then tcp", choice.transport).c_str(),
                 choice.reason.c_str());
  }
  if (!choice.transport.empty()) return over(choice.transport);
  return plugin::choose_transport(settings, state.host, rank_count, spread);
}

// The cards that each rank uses. `shares`: some rank uses only a part of those near it.
std::vector<std::vector<std::string>> shared_out_cards(const std::vector<Introduction>& all,
                                                       const std::vector<uint32_t>& hosts,
                                                       bool* shares) {
  std::vector<const std::vector<std::string>*> near;
  for (const Introduction& it : all) near.push_back(&it.cards.near);
  auto taken = cards_of_ranks(near, hosts);
  for (Rank p = 0; p < all.size(); ++p) *shares = *shares || taken[p] != all[p].cards.near;
  return taken;
}

}  // namespace

Communicator::Communicator()
    : reports_(state_),
      requests_(state_, reports_),
      windows_(state_),
      scales_(state_.name),
      devices_(state_),
      operations_(state_, requests_, reports_, windows_, devices_),
      records_(state_),
      health_(state_, reports_, operations_, records_,
              [this](const Status& status, const std::vector<Rank>& blamed) {
                if (Communicator* other = related()) other->health_.adopt(status, blamed);
              }),
      watched_(std::make_shared<WatchedCommunicator>(this)) {}

Result<std::unique_ptr<Communicator>> Communicator::create(const Secret& secret, Rank rank,
                                                           Rank rank_count,
                                                           const CommOptions& options,
                                                           const Place& place,
                                                           const JoinOptions& joining) {
  std::unique_ptr<Communicator> comm(new Communicator());
  Status status = comm->join(secret, rank, rank_count, options, place, joining);
  if (!status.ok()) {
    return status.with_context(fmt::format("rank {} of {} creating communicator '{}'", rank,
                                           rank_count, comm->state_.name));
  }
  register_communicator(comm.get());
  return comm;
}

void Communicator::open_segment(const weir_segment_t& segment) {
  engine::Context& context = state_.context;
  context.segment_base = segment.base;
  context.segment_stride_bytes = segment.stride_bytes;
  context.staging_bytes = segment.bytes_per_rank - engine::kStagingOffset;
}

Status Communicator::transport_failed(const char* what, weir_result_t result) const {
  return Status(static_cast<Code>(result),
                fmt::format("transport '{}', {}: {}", state_.context.transport->name, what,
                            state_.transport_error));
}

Status Communicator::connect_failed(weir_result_t result) {
  Status failed = transport_failed("connect", result);
  if (failed.code() == Code::kPeerLost || network_ == nullptr) return failed;
  const uint64_t until_ns = now_ns() + kDeathToldNs;
  while (true) {
    for (Rank p = 0; p < state_.rank_count(); ++p) {
      if (network_->life(p) != control::Life::kLost) continue;
      return Status(
          Code::kPeerLost,
          fmt::format("rank {} has died while the ranks were connecting ({})", p, failed.text()));
    }
    if (Status seen = bootstrap_->look(); !seen.ok()) return seen;
    if (now_ns() >= until_ns) return failed;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

Status Communicator::introduce(Bootstrap& bootstrap, const weir_transport_config_t& config,
                               Introduction self, uint64_t deadline_ns,
                               std::vector<Introduction>* all) {
  engine::Context& context = state_.context;
  weir_result_t result =
      context.transport->open(context.transport->context, &state_.host, &config, &context.instance);
  if (result != WEIR_OK) return transport_failed("open", result);
  unsigned char address[WEIR_TRANSPORT_ADDRESS_BYTES_MAX];
  size_t address_bytes = sizeof address;
  result = context.transport->address(context.instance, address, &address_bytes);
  if (result != WEIR_OK) return transport_failed("address", result);
  self.address.assign(reinterpret_cast<char*>(address), address_bytes);
  self.settings = fmt::format("transport={}\n{}", context.transport->name, self.settings);

  WEIR_RETURN_IF_ERROR(tell_all(bootstrap, self, deadline_ns, all));
  return check_same_settings(*all);
}

Status Communicator::look_out(Bootstrap& bootstrap, bool listens, Introduction* self,
                              uint64_t deadline_ns, std::vector<Introduction>* all) {
  if (listens) {
    const Status left = network_->leave_host();
    if (!left.ok()) return bootstrap.give_up(left.with_context("control network"));
    self->place = pack(place_of_this_host());
  }
  self->network = network_->address();
  return tell_all(bootstrap, *self, deadline_ns, all);
}

Status Communicator::join(const Secret& secret, Rank rank, Rank rank_count,
                          const CommOptions& options, const Place& place, JoinOptions joining) {
  engine::Context& context = state_.context;
  state_.name =
      options.name.empty() ? fmt::format("{:08x}", secret.public_id() & 0xffffffffu) : options.name;
  if (rank_count == 0 || rank_count > kRankCountMax || rank >= rank_count) {
    return invalid_argument(fmt::format(
        "rank {} of {} ranks: rank must be less than rank_count, and rank_count from 1 to {}", rank,
        rank_count, kRankCountMax));
  }
  const Result<Settings>& process = process_settings();
  if (!process.ok()) return process.status();
  Settings settings = process.value();
  if (!options.transport.empty()) settings.transport = options.transport;
  const ClockReading earlier = ClockReading::now();
  state_.secret = secret;
  options_ = options;
  state_.timeout_ms = options.timeout_ms > 0 ? options.timeout_ms : settings.timeout_ms;
  const uint64_t began_ns = now_ns();
  const uint64_t deadline_ns = began_ns + static_cast<uint64_t>(state_.timeout_ms) * 1'000'000u;
  const bool deterministic = options.deterministic || settings.deterministic;
  state_.deterministic = deterministic;
  state_.host_memory = options.host_memory;
  if (!state_.host_memory) look_for_driver();
  WEIR_RETURN_IF_ERROR(plugin::check_fault(settings.fault, settings.hooks));
  NamedAlgorithms algorithms = read_named_algorithms(settings);
  const Status& programs_status = algorithms.programs_status;
  const Status& names_status = algorithms.names_status;
  const ProgramFiles& programs = algorithms.programs;
  // A name may be unknown because a program is missing here: then all ranks hear of that.
  if (!names_status.ok() && settings.programs.empty()) return names_status;

  state_.host.struct_bytes = sizeof state_.host;
  state_.host.context = this;
  state_.host.error = [](void* self, const char* text) {
    static_cast<Communicator*>(self)->state_.transport_error = text;
  };
  state_.host.log = host_log;
  state_.host.setting = host_setting;
  state_.host.look = [](void* self) {
    return static_cast<Communicator*>(self)->look_while_connecting();
  };
  // Where only shared memory is used, no rank is looked for on other hosts.
  bool anywhere = true;
  if (!settings.transport.empty() && settings.transport.find(',') == std::string::npos) {
    const auto named = plugin::find_transport(settings.transport);
    anywhere = !named.ok() || !plugin::needs_one_host(*named.value());
  }
  if (anywhere) WEIR_RETURN_IF_ERROR(check_interfaces());
  auto transport =
      plugin::choose_transport(settings, state_.host, rank_count, plugin::Spread::kOneHost);
  if (!transport.ok()) return transport.status();
  context.rank = rank;
  context.rank_count = rank_count;
  context.transport = transport.value();
  context.peers.resize(rank_count);

  const Place reach = anywhere ? place : Place();
  StartTimes& times = start_times_;
  joining.began_ns = began_ns;
  joining.meanwhile = [this] {
    progress_others(nullptr);
    // A link may fail with a message of a measurement that this rank has finished.
    const engine::Context& its = state_.context;
    if (is_connected_ && !its.mapped()) its.transport->progress(its.instance);
  };
  auto bootstrap = Bootstrap::join(secret, rank, rank_count, deadline_ns, reach, joining);
  if (!bootstrap.ok()) return bootstrap.status();
  if (!programs_status.ok()) {
    return bootstrap.value()->give_up(programs_status.with_context(fmt::format("rank {}", rank)));
  }
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
  // Where memory of the host serves, what concerns other hosts is looked at once there are any.
  const bool may_leave = anywhere && !plugin::needs_one_host(*context.transport);
  const bool looks_out = may_leave && rank_count > 1;
  Nearby nearby = may_leave ? look_nearby(settings, !state_.host_memory, rank)
                            : look_nearby(!state_.host_memory);
  nearby.hint(&config);

  if (rank_count > 1) WEIR_RETURN_IF_ERROR(open_network(looks_out && !reach.empty()));
  // Calls that are captured into a graph must repeat their results.
  const bool captures = settings.learn && options.arithmetic == Arithmetic::kNccl &&
                        (driver_is_known() || look_for_driver());
  const bool learns = settings.learn && !deterministic && !captures;
  const char* const learning = learns           ? "1"
                               : captures       ? "1, but not beside CUDA's driver"
                               : settings.learn ? "1, but not where deterministic"
                                                : "0";
  Introduction self = introduce_this_process();
  self.cards.stance = stance_of(settings);
  self.cards.near = nearby.near.cards.names;
  if (!settings.topology_file.empty()) place_by_file(settings.topology_file, &self);
  if (nearby.device >= 0) self.device = told_device(nearby.device);
  if (network_ != nullptr) self.network = network_->address();
  if (looks_out && !reach.empty()) self.place = pack(place_of_this_host());
  self.settings = fmt::format(
      "hooks={}\ndeterministic={}\narithmetic={}\nWEIR_STAGING_BYTES={}\nWEIR_SLICE_BYTES={}\n"
      "WEIR_ALGORITHM='{}'\nWEIR_TLS={}\nWEIR_LEARN={}\nrules={}{}{}",
      settings.hooks, deterministic, options.arithmetic == Arithmetic::kNccl ? "NCCL's" : "IEEE's",
      settings.staging_bytes, settings.slice_bytes, settings.algorithm, settings.tls, learning,
      names_status.ok() ? describe_rules(algorithms.rules) : "cannot be read", kProgramsMark,
      programs.listing);
  std::vector<Introduction> all;
  WEIR_RETURN_IF_ERROR(introduce(*bootstrap.value(), config, self, deadline_ns, &all));
  if (!names_status.ok()) return names_status;
  const std::vector<uint32_t> hosts = host_of_rank(all);
  const bool one_host = hosts.empty();
  if (!one_host && !anywhere) return needs_network(settings.transport, hosts);
  if (!one_host && !looks_out) {
    nearby = look_nearby(settings, !state_.host_memory, rank);
    nearby.hint(&config);
    self.cards.near = nearby.near.cards.names;
    WEIR_RETURN_IF_ERROR(look_out(*bootstrap.value(), !reach.empty(), &self, deadline_ns, &all));
  }
  state_.leaves_host = !one_host;
  std::vector<uint32_t> cards;  // of the ranks
  if (!one_host && anywhere) {
    auto between = choose_between_hosts(settings, state_, hosts, all, [&](const std::string& text) {
      return bootstrap.value()->all_gather(text, deadline_ns);
    });
    if (!between.ok()) return between.status();
    bool shares = false;
    const auto taken = shared_out_cards(all, hosts, &shares);
    nearby.domain = join_names(taken[rank]);
    nearby.hint(&config);
    if (between.value() != context.transport ||
        (shares && plugin::uses_cards(*context.transport))) {
      context.transport->close(context.instance);
      context.instance = nullptr;
      context.transport = between.value();
      WEIR_RETURN_IF_ERROR(introduce(*bootstrap.value(), config, self, deadline_ns, &all));
    }
    if (plugin::uses_cards(*context.transport)) cards = numbers_of_cards(taken, hosts);
    if (settings.explain && rank == 0 && !cards.empty()) {
      std::fprintf(
          stderr, "cards of '%s': %u ranks use %u sets of them, which send at the same time\n",
          state_.name.c_str(), rank_count, *std::max_element(cards.begin(), cards.end()) + 1);
    }
    for (Rank p = 0; p < rank_count; ++p) {
      Place found;
      if (!all[p].place.empty() && !unpack(all[p].place, &found)) {
        return Status(Code::kRefused, fmt::format("the addresses that rank {} sent cannot be read; "
                                                  "do all ranks run the same version of Weir?",
                                                  p));
      }
      places_.push_back(std::move(found));
    }
  }
  if (const std::string text = nearby.describe(); !one_host && !text.empty()) {
    log_info(fmt::format("communicator '{}': rank {} has {}", state_.name, rank, text));
  }
  times.mark(&times.exchange_ns);
  std::vector<const unsigned char*> addresses;
  std::vector<size_t> sizes;
  for (const Introduction& it : all) {
    addresses.push_back(reinterpret_cast<const unsigned char*>(it.address.data()));
    sizes.push_back(it.address.size());
  }
  bootstrap_ = bootstrap.value().get();
  Status joined;
  if (network_ != nullptr) {
    std::vector<std::string> networks;
    for (const Introduction& it : all) networks.push_back(it.network);
    joined = network_->join(networks, deadline_ns, [this] { return bootstrap_->look(); });
  }
  weir_result_t result = joined.ok()
                             ? context.transport->connect(context.instance, addresses.data(),
                                                          sizes.data(), deadline_ns)
                             : WEIR_OK;
  const Status connected = result == WEIR_OK ? Status() : connect_failed(result);
  bootstrap_ = nullptr;
  // From here on a rank that fails tells the others, which may be further ahead.
  const auto give_up = [&](const Status& reason) {
    return bootstrap.value()->give_up(reason.with_context(fmt::format("rank {}", rank)));
  };
  if (!joined.ok()) return give_up(joined.with_context("control network"));
  if (!connected.ok()) return give_up(connected);
  is_connected_ = true;
  times.mark(&times.connect_ns);
  if (const std::string parts = plugin::describe_parts(*context.transport);
      settings.explain && rank == 0 && !parts.empty()) {
    std::fprintf(stderr, "transport of '%s': %s\n", state_.name.c_str(), parts.c_str());
  }

  if ((context.transport->caps.bits & WEIR_CAP_SEGMENT) != 0) {
    weir_segment_t segment{};
    result = context.transport->segment(context.instance, &segment);
    if (result != WEIR_OK) return give_up(transport_failed("segment", result));
    open_segment(segment);
    context.lacks_huge_pages = settings.huge_pages;
  } else if (rank_count == 1 && settings.hooks.empty()) {
    const uint64_t bytes = (config.segment_bytes + 4095) / 4096 * 4096;
    private_segment_.reset(static_cast<unsigned char*>(std::aligned_alloc(4096, bytes)));
    if (private_segment_ == nullptr) {
      return Status(Code::kNoMemory,
                    "no memory for the staging memory of this rank; lower WEIR_STAGING_BYTES");
    }
    std::memset(private_segment_.get(), 0, engine::kStagingOffset);
    open_segment({private_segment_.get(), bytes, bytes});
  }

  reports_.open(network_.get());
  MachineExchange machines(context, settings, all, cards);
  auto costs = agree_on_costs(*bootstrap.value(), context, settings, all, deadline_ns,
                              state_.transport_error, &machines);
  if (!costs.ok()) return costs.status();
  auto links = machines.agree(*bootstrap.value(), &costs.value(), deadline_ns);
  if (!links.ok()) return links.status();
  if (const std::string& reason = links.value().reason; !reason.empty() && rank == 0) {
    log_info(fmt::format("links of '{}': {}", state_.name, reason));
    if (settings.explain) {
      std::fprintf(stderr, "links of '%s': %s\n", state_.name.c_str(), reason.c_str());
    }
  }
  times.mark(&times.costs_ns);
  log_info(fmt::format("communicator '{}': rank {} of {} started in {}", state_.name, rank,
                       rank_count, times.describe()));

  const std::vector<bool> shares = shared_cores(all);
  const bool shared = shares[rank];
  // Plans must be the same on every rank.
  const bool any_shared = std::find(shares.begin(), shares.end(), true) != shares.end();
  state_.wait_policy = settings.spin_us >= 0 ? WaitPolicy::spin_for(settings.spin_us)
                       : shared ? WaitPolicy::with_shared_core(ranks_per_core(all, rank))
                                : WaitPolicy::with_own_core();
  engine::PlannerOptions planner;
  planner.deterministic = deterministic;
  planner.arithmetic = options.arithmetic;
  planner.shared_cores = any_shared;
  planner.slice_bytes = static_cast<uint64_t>(settings.slice_bytes);
  planner.forced = std::move(algorithms.forced);
  planner.table = costs.value().table;
  planner.wire_of_node = costs.value().wire_of_host;
  planner.forests = links.value().forests;
  planner.memory_ways = links.value().memory_ways;
  state_.device_ways = links.value().device_ways;
  planner.rules = std::move(algorithms.rules);
  planner.programs = programs.programs;
  planner.explain = settings.explain;
  planner.learns = learns;
  planner.learn_seed = costs.value().learn_seed;
  planner.learned = std::move(costs.value().learned);
  times_of_ranks_.open(network_.get(), rank, rank_count);
  if (learns || settings.explain) {
    planner.on_measured = [this](const cost::DecisionRecord& record,
                                 const cost::ExploredTimes* explored) {
      times_of_ranks_.measured(record, explored);
    };
  }
  if (learns) learned_in_ = costs.value().learned_in;
  // How long ranks wait for a core is not in the table.
  if (!any_shared) costs_cached_in_ = costs.value().cached_in;
  planner.times_calls = !costs_cached_in_.empty();
  planner.core_count = cores_per_host(all);
  planner.node_of_rank = hosts;
  planner.card_of_rank = std::move(cards);
  RankGroups groups = rank_groups(all);
  planner.cache_of_rank = std::move(groups.cache_of_rank);
  planner.numa_of_rank = std::move(groups.numa_of_rank);
  planner.package_of_rank = std::move(groups.package_of_rank);
  planner.ranks_per_cache = groups.ranks_per_cache;
  operations_.open(std::make_unique<engine::Planner>(context, std::move(planner)));
  operations_.device_side().set_owner(watched_, network_.get());
  health_.open();
  if (settings.recorder && options.recorded && rank_count > 1) {
    records_.open(config.comm_id, all, earlier, start_times_, settings.recorder_dir);
  }
  const bool all_on_devices = std::all_of(
      all.begin(), all.end(), [](const Introduction& it) { return !it.device.empty(); });
  return one_host && all_on_devices ? prepare_device(nearby.device) : Status();
}

Status Communicator::prepare_device(int device) {
  devices_.expect_device();
  {
    const std::lock_guard lock(state_.lock);
    operations_.device_side().prepare(device);
  }
  return await_device_side();
}

Status Communicator::open_network(bool leaves_host) {
  control::NetworkConfig config;
  config.comm_id = state_.secret.public_id();
  config.rank = state_.context.rank;
  config.rank_count = state_.context.rank_count;
  config.secret = state_.secret.derive("control network");
  config.leaves_host = leaves_host;
  std::string reason;
  if (!net::filter_from(host_setting(nullptr, "WEIR_IFNAME"),
                        host_setting(nullptr, "NCCL_SOCKET_IFNAME"), &config.filter, &reason)) {
    return invalid_argument(reason);
  }
  if (!net::tls_mode_of(host_setting(nullptr, "WEIR_TLS"), net::TlsMode::kAll, &config.tls,
                        &reason)) {
    return invalid_argument(reason);
  }
  auto opened = control::Network::open(config);
  if (!opened.ok()) return opened.status().with_context("control network");
  network_ = opened.take();
  host_control_ = std::make_unique<control::HostControl>(
      network_.get(), uint8_t{0},
      [this](const std::string& text) { state_.transport_error = text; },
      [this] { return bootstrap_ == nullptr ? Status() : bootstrap_->look(); });
  state_.host.control = host_control_->functions();
  return Status();
}

weir_result_t Communicator::look_while_connecting() {
  if (bootstrap_ == nullptr) return WEIR_OK;
  const Status seen = bootstrap_->look();
  if (!seen.ok()) state_.transport_error = seen.text();
  return static_cast<weir_result_t>(seen.code());
}

void Communicator::leave_to_parent(std::unique_ptr<Communicator> comm) {
  if (comm->state_.lock.try_lock()) {
    comm->state_.lock.unlock();
    return;
  }
  // Kept reachable, so that leak checkers find it.
  static constinit PerProcess<std::vector<Communicator*>> kept;
  static constinit PerProcess<std::mutex> lock;
  const std::lock_guard guard(lock.get());
  kept->push_back(comm.release());
}

Communicator::~Communicator() {
  if (!state_.maker.is_this()) {
    leave_in_child();
    return;
  }
  unregister_communicator(this);
  close_one_sided();
  if (const engine::Planner* planner = operations_.queue().planner(); planner != nullptr) {
    times_of_ranks_.conclude(planner->decisions());
    planner->explain_totals(times_of_ranks_.all());
    if (learned_in_) keep_learned(*learned_in_, planner->decisions(), times_of_ranks_.all());
    doubt_if_times_disagree(costs_cached_in_, planner->table(), planner->decisions());
  }
  if (operations_.device_side().is_open()) {
    const std::lock_guard lock(state_.lock);
    poll_locked();  // operations that the device has finished
  }
  // The device's library must hear it. To other ranks this one has left, whatever it had begun.
  if (has_requests() && operations_.device_side().is_open()) abort();
  const Status unfinished(Code::kAborted,
                          "the communicator was destroyed with operations in flight");
  {
    const std::lock_guard lock(state_.lock);
    if (state_.context.mapped() && operations_.queue().is_empty()) state_.context.publish_done();
    operations_.send_rest();
    operations_.fail_all(unfinished);
    health_.say_goodbye();
    operations_.device_side().close();
  }
  watched_->detach();
  windows_.close_all(true);
  const DeviceContext::Scope scope(operations_.messages().device_context());
  if (state_.context.instance != nullptr) {
    state_.context.transport->close(state_.context.instance);
  }
  if (network_ != nullptr) network_->leave();
  requests_.close(unfinished);
}

void Communicator::leave_in_child() {
  operations_.device_side().leave_to_child();
  if (one_sided_ != nullptr) OneSided::leave_to_parent(std::move(one_sided_));
  operations_.messages().leave_to_child();
  requests_.leave_to_child(Status(Code::kInvalidUsage, state_.maker.refusal("communicator")));
  windows_.close_all(false);
  if (state_.context.instance != nullptr) {
    state_.context.transport->close(state_.context.instance);
  }
}

// ---- One-sided operations -----------------------------------------------------------------------

Result<OneSided*> Communicator::open_one_sided() {
  if (Status status = health(); !status.ok()) return status;
  if (one_sided_ != nullptr) return one_sided_.get();
  CommOptions options = options_;
  options.timeout_ms = timeout_ms();
  options.name = name() + "/windows";
  options.host_memory = true;
  options.recorded = false;  // its operations are in the owner's record
  auto made = create(state_.secret.derive("windows"), rank(), rank_count(), options, place_of(0),
                     joining_in("weir_window_create"));
  if (!made.ok()) return made.status();
  std::unique_ptr<Communicator> carrier = made.take();
  {
    const std::lock_guard lock(carrier->state_.lock);
    carrier->records_.carry_for(records_);
    carrier->operations_.open_one_sided(carrier->requests_, records_);
  }
  CommState& carrier_state = carrier->state_;
  carrier->outer_.store(this);
  inner_.store(carrier.get());
  one_sided_ = std::make_unique<OneSided>(
      OneSided::Owner{state_, windows_, devices_, records_,
                      [this](const engine::Call& call) { return run(call); }},
      std::move(carrier), carrier_state);
  return one_sided_.get();
}

bool Communicator::poll_windows() {
  return one_sided_ != nullptr && one_sided_->carrier().try_poll();
}

void Communicator::close_one_sided() {
  if (one_sided_ == nullptr) return;
  inner_.store(nullptr);
  one_sided_->carrier().outer_.store(nullptr);
  one_sided_.reset();
}

}  // namespace weir::comm
