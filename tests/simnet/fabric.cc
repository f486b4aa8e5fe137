// SPDX-License-Identifier: Apache-2.0
#include "simnet/fabric.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>

#include "core/base/check.h"

namespace weir::simnet {

namespace {

Fabric* g_fabric = nullptr;

constexpr uint64_t kPending = 1;
constexpr uint64_t kDone = 2;
constexpr uint64_t kFailedBase = 16;
constexpr uint32_t kLanesMax = WEIR_TRANSPORT_LANES_MAX;

}  // namespace

// In the words of a weir_transport_op_t.
struct Op {
  uint64_t state;
  uint64_t data;
  uint64_t bytes;
  uint64_t moved;
  uint64_t pipe;
  uint64_t sends;
  uint64_t unused[2];
};
static_assert(sizeof(Op) == sizeof(weir_transport_op_t::word));

struct Piece {
  uint64_t arrival_ns = 0;
  uint64_t message_bytes = 0;
  bool first = false;
  bool last = false;
  std::vector<unsigned char> data;
};

// One lane from one rank to another.
struct Pipe {
  Mesh* mesh = nullptr;
  uint32_t from = 0, to = 0, lane = 0;  // ranks of the mesh
  std::deque<Op*> sends, recvs;
  std::deque<Piece> wire;
  uint64_t wire_bytes = 0;
  uint64_t messages_begun = 0, messages_taken = 0, recvs_posted = 0;
  uint64_t last_arrival_ns = 0;
  uint64_t sender_end_ns = kNever;    // from then on the receiver sees the end of the connection
  uint64_t receiver_end_ns = kNever;  // from then on the sender does
  bool mismatched = false;
  bool withheld = false;
  weir_result_t untold = WEIR_OK;  // a failure that nobody has asked about yet
};

struct Shown {
  uint64_t arrival_ns = 0;
  uint64_t told_ns = 0;  // when the sender's host knows that it has arrived
  std::vector<unsigned char> bytes;
};

// Notices from one rank to another.
struct Board {
  std::deque<Shown> on_their_way;
  std::vector<unsigned char> latest;
  uint64_t told_ns = 0;
  uint64_t unreached_ns = 0;  // since when something of it is on its way; 0: nothing is
  uint32_t version = 0;       // of the latest
};

struct Mesh {
  uint64_t id = 0;
  std::vector<Instance*> instances;  // by rank; nullptr: not open, or closed
  std::vector<uint32_t> world_rank;
  std::vector<std::unique_ptr<Pipe>> pipes;
  std::vector<Board> boards;  // [from * n + to]
  std::vector<uint64_t> dead_seen_ns;
  unsigned char* segment = nullptr;  // of all ranks, one after the other
  uint64_t segment_stride_bytes = 0;
  std::vector<uint64_t> goodbye_ns;  // [from * n + to]: when `to` sees that `from` has closed
  uint32_t closed_count = 0;
  bool in_order = true;
  uint32_t rank_count() const { return static_cast<uint32_t>(instances.size()); }

  Mesh() = default;
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;
  ~Mesh() {
    if (segment != nullptr) munmap(segment, segment_stride_bytes * rank_count());
  }
};

struct Instance {
  const weir_host_t* host = nullptr;
  Mesh* mesh = nullptr;
  uint32_t rank = 0;
  std::vector<Pipe*> active;
};

namespace {

Instance* from(weir_transport_t* instance) { return reinterpret_cast<Instance*>(instance); }

void finish(Op* op, uint64_t state) { op->state = state; }

void fail_all(std::deque<Op*>& ops, weir_result_t result) {
  for (Op* op : ops) finish(op, kFailedBase + static_cast<uint64_t>(result));
  ops.clear();
}

}  // namespace

Fabric::Fabric(World& world, const FabricOptions& options, std::vector<uint32_t> host_of_rank)
    : world_(world), options_(options), host_of_rank_(std::move(host_of_rank)) {
  const size_t n = host_of_rank_.size();
  post_counts_.assign(n, 0);
  kill_at_.assign(n, kNever);
  stop_at_.assign(n, kNever);
  stop_until_ns_.assign(n, kNever);
  WEIR_CHECK(g_fabric == nullptr, "one simulated network at a time");
  g_fabric = this;
  (void)transport();
}

Fabric::~Fabric() { g_fabric = nullptr; }

void Fabric::kill_at_post(uint32_t rank, uint64_t count) {
  kill_at_[rank] = post_counts_[rank] + count;
}

void Fabric::stop_at_post(uint32_t rank, uint64_t count, uint64_t until_ns) {
  stop_at_[rank] = post_counts_[rank] + count;
  stop_until_ns_[rank] = until_ns;
}

uint64_t Fabric::arrival_ns(uint32_t from, uint32_t to, uint64_t at_ns) {
  if (options_.shares_memory) return at_ns;
  Random& random = world_.random();
  const bool near = host_of_rank_[from] == host_of_rank_[to];
  uint64_t ns =
      at_ns + (near ? options_.near_ns : options_.far_ns) + random.of_any_size(options_.jitter_ns);
  if (random.one_in(200)) ns += random.below(50 * options_.jitter_ns + 1);
  for (const Stall& stall : stalls_) {
    const bool meant = (stall.a == from && stall.b == to) || (stall.a == to && stall.b == from);
    if (!meant || ns < stall.from_ns || ns >= stall.until_ns) continue;
    if (stall.until_ns == kNever) return kNever;
    ns = stall.until_ns + random.below(options_.jitter_ns + 1);
  }
  return ns;
}

Pipe& Fabric::pipe(Mesh& mesh, uint32_t from, uint32_t to, uint32_t lane) {
  const size_t n = mesh.rank_count();
  auto& place = mesh.pipes[(from * n + to) * kLanesMax + lane];
  if (place == nullptr) {
    place = std::make_unique<Pipe>();
    place->mesh = &mesh;
    place->from = from;
    place->to = to;
    place->lane = lane;
    // An end that has gone before the other one first used this lane.
    const uint64_t now = world_.now_ns();
    if (mesh.instances[from] == nullptr) place->sender_end_ns = now;
    if (mesh.instances[to] == nullptr) place->receiver_end_ns = now;
    if (mesh.dead_seen_ns[from] != kNever) place->sender_end_ns = mesh.dead_seen_ns[from];
    if (mesh.dead_seen_ns[to] != kNever) place->receiver_end_ns = mesh.dead_seen_ns[to];
  }
  return *place;
}

void Fabric::release(Instance& instance) {
  if (!options_.withholds) return;
  Mesh& mesh = *instance.mesh;
  const uint32_t me = mesh.world_rank[instance.rank];
  for (const auto& pipe : mesh.pipes) {
    if (pipe == nullptr || pipe->from != instance.rank || !pipe->withheld) continue;
    pipe->withheld = false;
    const uint32_t peer = mesh.world_rank[pipe->to];
    for (Piece& piece : pipe->wire) {
      if (piece.arrival_ns != kNever) continue;
      piece.arrival_ns = arrival_ns(me, peer, world_.now_ns());
      world_.poke(peer, piece.arrival_ns);
    }
  }
}

void Fabric::pump(Pipe& pipe) {
  Mesh& mesh = *pipe.mesh;
  Random& random = world_.random();
  const uint32_t me = mesh.world_rank[pipe.from];
  while (!pipe.sends.empty()) {
    const uint64_t now = world_.now_ns();
    if (now >= pipe.receiver_end_ns) {
      world_.trace().add(now, me, What::kFailed, mesh.world_rank[pipe.to], pipe.lane,
                         WEIR_ERROR_PEER_LOST);
      fail_all(pipe.sends, WEIR_ERROR_PEER_LOST);
      pipe.untold = WEIR_ERROR_PEER_LOST;
      return;
    }
    Op* op = pipe.sends.front();
    if (op->moved == 0) {
      const bool eager = op->bytes <= options_.eager_bytes &&
                         pipe.messages_begun - pipe.messages_taken < options_.credit;
      if (!eager && pipe.recvs_posted <= pipe.messages_begun) return;
    }
    const uint64_t left = op->bytes - op->moved;
    const uint64_t room =
        pipe.wire_bytes < options_.window_bytes ? options_.window_bytes - pipe.wire_bytes : 0;
    const uint64_t bytes = std::min({left, room, 1 + random.below(options_.piece_bytes_max)});
    if (left > 0 && bytes == 0) return;
    Piece piece;
    piece.first = op->moved == 0;
    piece.last = bytes == left;
    piece.message_bytes = op->bytes;
    const auto* data = reinterpret_cast<const unsigned char*>(op->data) + op->moved;
    if (bytes > 0) piece.data.assign(data, data + bytes);
    if (bytes > 0 && ++piece_count_ == options_.damaged_piece) piece.data.front() ^= 1;
    piece.arrival_ns =
        std::max(pipe.last_arrival_ns, arrival_ns(me, mesh.world_rank[pipe.to], now));
    if (options_.withholds && piece.last) {
      pipe.withheld = true;
      piece.arrival_ns = kNever;
    } else {
      pipe.last_arrival_ns = piece.arrival_ns;
    }
    pipe.wire_bytes += bytes;
    if (piece.first) ++pipe.messages_begun;
    op->moved += bytes;
    world_.trace().add(now, me, What::kPiece, mesh.world_rank[pipe.to], pipe.lane, bytes);
    world_.poke(mesh.world_rank[pipe.to], piece.arrival_ns);
    world_.moved();
    const bool last = piece.last;
    pipe.wire.push_back(std::move(piece));
    if (last) {
      pipe.sends.pop_front();
      finish(op, kDone);
      world_.trace().add(now, me, What::kSent, mesh.world_rank[pipe.to], pipe.lane, op->bytes);
    }
    if (random.one_in(4)) {
      world_.poke(me, now + kMicrosecond);
      return;
    }
  }
}

void Fabric::drain(Pipe& pipe) {
  Mesh& mesh = *pipe.mesh;
  Random& random = world_.random();
  const uint32_t me = mesh.world_rank[pipe.to];
  const uint32_t peer = mesh.world_rank[pipe.from];
  while (!pipe.recvs.empty()) {
    const uint64_t now = world_.now_ns();
    Op* op = pipe.recvs.front();
    if (pipe.mismatched) {
      fail_all(pipe.recvs, WEIR_ERROR_MISMATCH);
      pipe.untold = WEIR_ERROR_MISMATCH;
      return;
    }
    if (pipe.wire.empty() || pipe.wire.front().arrival_ns > now) {
      const bool ended = now >= pipe.sender_end_ns &&
                         (pipe.wire.empty() || pipe.wire.front().arrival_ns == kNever);
      if (ended) {
        world_.trace().add(now, me, What::kFailed, peer, pipe.lane, WEIR_ERROR_PEER_LOST);
        fail_all(pipe.recvs, WEIR_ERROR_PEER_LOST);
        pipe.untold = WEIR_ERROR_PEER_LOST;
      }
      return;
    }
    Piece& piece = pipe.wire.front();
    if (piece.first && piece.message_bytes != op->bytes) {
      world_.trace().add(now, me, What::kFailed, peer, pipe.lane, WEIR_ERROR_MISMATCH);
      pipe.mismatched = true;
      continue;
    }
    if (!piece.data.empty()) {
      std::memcpy(reinterpret_cast<unsigned char*>(op->data) + op->moved, piece.data.data(),
                  piece.data.size());
    }
    op->moved += piece.data.size();
    pipe.wire_bytes -= piece.data.size();
    const bool last = piece.last;
    pipe.wire.pop_front();
    world_.poke(peer, now + kMicrosecond);
    world_.moved();
    if (last) {
      pipe.recvs.pop_front();
      ++pipe.messages_taken;
      ++message_count_;
      finish(op, kDone);
      world_.trace().add(now, me, What::kReceived, peer, pipe.lane, op->bytes);
    }
    // What lies in shared memory is there as a whole.
    if (!options_.shares_memory && random.one_in(8)) {
      world_.poke(me, now + kMicrosecond);
      return;
    }
  }
}

// The other ends see it after what was on its way, or, after a death, after a part of that.
void Fabric::end_pipes(Instance& instance, bool died) {
  Mesh& mesh = *instance.mesh;
  Random& random = world_.random();
  const uint64_t now = world_.now_ns();
  const bool loses = died && options_.death_loses;
  const uint64_t lost_after_ns = loses ? now + random.of_any_size(2 * options_.jitter_ns) : kNever;
  for (const auto& pipe : mesh.pipes) {
    if (pipe == nullptr) continue;
    const uint32_t me = mesh.world_rank[instance.rank];
    if (pipe->from == instance.rank && pipe->sender_end_ns == kNever) {
      pipe->sends.clear();
      while (!pipe->wire.empty() && pipe->wire.back().arrival_ns > lost_after_ns) {
        pipe->wire_bytes -= pipe->wire.back().data.size();
        pipe->wire.pop_back();
      }
      const uint64_t last_ns = pipe->wire.empty() ? now : pipe->wire.back().arrival_ns;
      pipe->sender_end_ns = std::max(last_ns, arrival_ns(me, mesh.world_rank[pipe->to], now));
      world_.poke(mesh.world_rank[pipe->to], pipe->sender_end_ns);
    }
    if (pipe->to == instance.rank && pipe->receiver_end_ns == kNever) {
      pipe->recvs.clear();
      pipe->receiver_end_ns = arrival_ns(me, mesh.world_rank[pipe->from], now);
      world_.poke(mesh.world_rank[pipe->from], pipe->receiver_end_ns);
    }
  }
  if (!died) {
    for (uint32_t to = 0; to < mesh.rank_count(); ++to) {
      mesh.goodbye_ns[instance.rank * mesh.rank_count() + to] =
          arrival_ns(mesh.world_rank[instance.rank], mesh.world_rank[to], now);
    }
    return;
  }
  mesh.in_order = false;
  mesh.dead_seen_ns[instance.rank] = arrival_ns(instance.rank, instance.rank, now);
  for (uint32_t to = 0; to < mesh.rank_count(); ++to) {
    Board& board = mesh.boards[instance.rank * mesh.rank_count() + to];
    while (!board.on_their_way.empty() && board.on_their_way.back().arrival_ns > lost_after_ns) {
      board.on_their_way.pop_back();
    }
    world_.poke(mesh.world_rank[to], mesh.dead_seen_ns[instance.rank]);
  }
}

void Fabric::die(uint32_t rank) {
  fault_ns_ = std::min(fault_ns_, world_.now_ns());
  for (const auto& [id, mesh] : meshes_) {
    for (Instance* instance : mesh->instances) {
      if (instance != nullptr && mesh->world_rank[instance->rank] == rank) {
        end_pipes(*instance, true);
      }
    }
  }
}

void Fabric::kill(uint32_t rank) {
  die(rank);
  world_.kill(rank);
}

void Fabric::stop(uint32_t rank) {
  fault_ns_ = std::min(fault_ns_, world_.now_ns());
  world_.stop(rank, kNever);
}

void Fabric::count_post(uint32_t rank) {
  const uint64_t count = ++post_counts_[rank];
  if (count == stop_at_[rank]) {
    fault_ns_ = std::min(fault_ns_, world_.now_ns());
    world_.stop(rank,
                stop_until_ns_[rank] == kNever ? kNever : world_.now_ns() + stop_until_ns_[rank]);
  }
  if (count == kill_at_[rank]) kill(rank);
}

void Fabric::close(Instance* instance) {
  Mesh& mesh = *instance->mesh;
  const uint32_t me = mesh.world_rank[instance->rank];
  world_.trace().add(world_.now_ns(), me, What::kClosed);
  if (!world_.is_dead(me)) end_pipes(*instance, false);
  mesh.instances[instance->rank] = nullptr;
  if (world_.closing()) mesh.in_order = false;
  if (++mesh.closed_count == mesh.rank_count() && mesh.in_order) {
    for (const auto& pipe : mesh.pipes) {
      if (pipe == nullptr || pipe->wire.empty()) continue;
      leftovers_ += fmt::format("rank {} sent {} bytes to rank {} on lane {} that nobody took; ",
                                mesh.world_rank[pipe->from], pipe->wire_bytes,
                                mesh.world_rank[pipe->to], pipe->lane);
    }
  }
  delete instance;
}

std::string Fabric::waits() const {
  std::string text;
  for (const auto& [id, mesh] : meshes_) {
    for (const auto& pipe : mesh->pipes) {
      if (pipe == nullptr) continue;
      const uint32_t a = mesh->world_rank[pipe->from];
      const uint32_t b = mesh->world_rank[pipe->to];
      if (!pipe->recvs.empty()) {
        text +=
            fmt::format("rank {} waits for {} bytes from rank {} (lane {}, {} of them there); ", b,
                        pipe->recvs.front()->bytes, a, pipe->lane, pipe->recvs.front()->moved);
      }
      if (!pipe->sends.empty()) {
        text +=
            fmt::format("rank {} waits to send {} bytes to rank {} (lane {}, {} of them gone); ", a,
                        pipe->sends.front()->bytes, b, pipe->lane, pipe->sends.front()->moved);
      }
      if (!pipe->wire.empty()) {
        text += fmt::format("{} pieces lie between rank {} and rank {} (lane {}); ",
                            pipe->wire.size(), a, b, pipe->lane);
      }
    }
  }
  return text.empty() ? "nobody has posted anything" : text;
}

// The functions of the table.
struct Functions {
  static weir_result_t fail(const Instance* self, weir_result_t result, const std::string& text) {
    self->host->error(self->host->context, text.c_str());
    return result;
  }

  static weir_result_t viable(void*, const weir_host_t*, char* reason, size_t bytes) {
    if (bytes > 0) reason[0] = 0;
    return WEIR_OK;
  }

  static weir_result_t open(void*, const weir_host_t* host, const weir_transport_config_t* config,
                            weir_transport_t** out) {
    Fabric& fabric = *g_fabric;
    Mesh* const mesh = fabric.mesh_of(config->comm_id, config->rank_count);
    if (fabric.options_.shares_memory && mesh->segment == nullptr) {
      mesh->segment_stride_bytes = (config->segment_bytes + 4095) / 4096 * 4096;
      void* memory =
          mmap(nullptr, mesh->segment_stride_bytes * config->rank_count, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      WEIR_CHECK(memory != MAP_FAILED, "there is memory for a segment");
      mesh->segment = static_cast<unsigned char*>(memory);
    }
    auto* self = new Instance;
    self->host = host;
    self->mesh = mesh;
    self->rank = config->rank;
    mesh->instances[config->rank] = self;
    mesh->world_rank[config->rank] = fabric.world_.running();
    *out = reinterpret_cast<weir_transport_t*>(self);
    return WEIR_OK;
  }

  static weir_result_t address(weir_transport_t* instance, unsigned char* out, size_t* bytes) {
    const Instance* self = from(instance);
    std::memcpy(out, &self->rank, sizeof self->rank);
    *bytes = sizeof self->rank;
    return WEIR_OK;
  }

  static weir_result_t connect(weir_transport_t* instance, const unsigned char* const* addresses,
                               const size_t* address_bytes, uint64_t) {
    const Instance* self = from(instance);
    for (uint32_t p = 0; p < self->mesh->rank_count(); ++p) {
      if (address_bytes[p] != sizeof p || std::memcmp(addresses[p], &p, sizeof p) != 0) {
        return fail(self, WEIR_ERROR_INVALID_ARGUMENT, "sim: an address is not what was told");
      }
    }
    return WEIR_OK;
  }

  static void close(weir_transport_t* instance) { g_fabric->close(from(instance)); }

  static weir_result_t state_of(const Instance* self, const Op* op) {
    if (op->state == kDone) return WEIR_OK;
    if (g_fabric->world_.closing()) return fail(self, WEIR_ERROR_SYSTEM, "sim: the world ends");
    if (op->state == kPending) return WEIR_IN_PROGRESS;
    WEIR_CHECK(op->state > kFailedBase, "an operation is tested after it was posted");
    const auto result = static_cast<weir_result_t>(op->state - kFailedBase);
    Pipe* pipe = reinterpret_cast<Pipe*>(op->pipe);
    pipe->untold = WEIR_OK;
    const uint32_t peer = op->sends != 0 ? pipe->to : pipe->from;
    return fail(self, result,
                fmt::format("sim: {} rank {} failed on lane {}: {}",
                            op->sends != 0 ? "a message to" : "a message from", peer, pipe->lane,
                            result == WEIR_ERROR_MISMATCH ? "it has another length"
                                                          : "the connection has ended"));
  }

  static weir_result_t post(weir_transport_t* instance, uint32_t peer, uint32_t lane, void* data,
                            uint64_t bytes, weir_transport_op_t* words, bool sends) {
    Fabric& fabric = *g_fabric;
    Instance* self = from(instance);
    Mesh& mesh = *self->mesh;
    const uint32_t me = mesh.world_rank[self->rank];
    WEIR_CHECK(me == fabric.world_.running(), "a rank uses its own instance only");
    if (peer >= mesh.rank_count() || lane >= fabric.options_.lane_count) {
      return fail(self, WEIR_ERROR_INVALID_ARGUMENT, "sim: no such peer or lane");
    }
    fabric.count_post(me);
    fabric.release(*self);
    if (fabric.world_.closing()) return fail(self, WEIR_ERROR_SYSTEM, "sim: the world ends");
    Pipe& pipe = sends ? fabric.pipe(mesh, self->rank, peer, lane)
                       : fabric.pipe(mesh, peer, self->rank, lane);
    auto* op = reinterpret_cast<Op*>(words);
    *op = {kPending, reinterpret_cast<uint64_t>(data),  bytes,
           0,        reinterpret_cast<uint64_t>(&pipe), sends ? 1u : 0u,
           {}};
    fabric.world_.trace().add(fabric.world_.now_ns(), me, sends ? What::kSend : What::kRecv,
                              mesh.world_rank[peer], lane, bytes);
    if (sends) {
      pipe.sends.push_back(op);
      fabric.pump(pipe);
    } else {
      pipe.recvs.push_back(op);
      ++pipe.recvs_posted;
      fabric.world_.poke(mesh.world_rank[peer], fabric.world_.now_ns() + kMicrosecond);
      fabric.drain(pipe);
    }
    if (op->state == kPending &&
        std::find(self->active.begin(), self->active.end(), &pipe) == self->active.end()) {
      self->active.push_back(&pipe);
    }
    return state_of(self, op);
  }

  static weir_result_t send(weir_transport_t* instance, uint32_t peer, uint32_t lane,
                            const void* data, uint64_t bytes, weir_transport_op_t* op) {
    return post(instance, peer, lane, const_cast<void*>(data), bytes, op, true);
  }
  static weir_result_t recv(weir_transport_t* instance, uint32_t peer, uint32_t lane, void* data,
                            uint64_t bytes, weir_transport_op_t* op) {
    return post(instance, peer, lane, data, bytes, op, false);
  }

  static void move(Instance* self, Pipe& pipe) {
    if (pipe.from == self->rank) g_fabric->pump(pipe);
    if (pipe.to == self->rank) g_fabric->drain(pipe);
  }

  static weir_result_t test(weir_transport_t* instance, weir_transport_op_t* words) {
    Instance* self = from(instance);
    auto* op = reinterpret_cast<Op*>(words);
    g_fabric->release(*self);
    if (op->state == kPending && !g_fabric->world_.closing()) {
      move(self, *reinterpret_cast<Pipe*>(op->pipe));
    }
    return state_of(self, op);
  }

  static weir_result_t progress(weir_transport_t* instance) {
    Instance* self = from(instance);
    if (g_fabric->world_.closing()) return WEIR_OK;
    g_fabric->release(*self);
    for (size_t i = 0; i < self->active.size();) {
      Pipe& pipe = *self->active[i];
      move(self, pipe);
      if (g_fabric->options_.progress_tells && pipe.untold != WEIR_OK) {
        return fail(self, std::exchange(pipe.untold, WEIR_OK), "sim: a connection has failed");
      }
      const bool idle = (pipe.from != self->rank || pipe.sends.empty()) &&
                        (pipe.to != self->rank || pipe.recvs.empty());
      if (idle) {
        self->active[i] = self->active.back();
        self->active.pop_back();
      } else {
        ++i;
      }
    }
    return WEIR_OK;
  }

  static weir_result_t segment(weir_transport_t* instance, weir_segment_t* out) {
    const Mesh& mesh = *from(instance)->mesh;
    *out = {mesh.segment, mesh.segment_stride_bytes, mesh.segment_stride_bytes};
    return WEIR_OK;
  }

  static weir_result_t peer_alive(weir_transport_t* instance, uint32_t peer) {
    const Instance* self = from(instance);
    if (g_fabric->world_.closing()) return WEIR_OK;
    if (g_fabric->world_.now_ns() < self->mesh->dead_seen_ns[peer]) return WEIR_OK;
    return fail(self, WEIR_ERROR_PEER_LOST, fmt::format("sim: rank {} has died", peer));
  }
};

// ---- The control network ----------------------------------------------------------------------

Mesh* Fabric::mesh_of(uint64_t comm_id, uint32_t rank_count) {
  auto& mesh = meshes_[comm_id];
  if (mesh != nullptr) return mesh.get();
  mesh = std::make_unique<Mesh>();
  const size_t n = rank_count;
  mesh->id = comm_id;
  mesh->instances.resize(n);
  mesh->world_rank.assign(n, 0);
  mesh->pipes.resize(n * n * kLanesMax);
  mesh->boards.resize(n * n);
  mesh->dead_seen_ns.assign(n, kNever);
  mesh->goodbye_ns.assign(n * n, kNever);
  return mesh.get();
}

// What ranks show takes its time on its way, as messages do, and each link has the latest only.
class FabricNetwork final : public control::Network {
 public:
  FabricNetwork(Fabric* fabric, Mesh* mesh, uint32_t rank)
      : fabric_(*fabric), mesh_(*mesh), rank_(rank) {}

  Status leave_host() override { return Status(); }
  std::string address() const override { return "sim"; }
  Status join(const std::vector<std::string>&, uint64_t, const StillPossible&) override {
    return Status();
  }
  Status set_address(Rank, const std::string&) override { return Status(); }

  void show(std::string_view notice) override {
    if (fabric_.world_.closing()) return;
    const uint32_t me = mesh_.world_rank[rank_];
    const uint64_t now = fabric_.world_.now_ns();
    fabric_.world_.trace().add(now, me, What::kNotice, 0, 0, notice.size());
    shown_.assign(notice);
    ++version_;
    for (uint32_t peer = 0; peer < mesh_.rank_count(); ++peer) {
      if (peer == rank_ || mesh_.goodbye_ns[peer * mesh_.rank_count() + rank_] <= now) continue;
      Board& board = mesh_.boards[rank_ * mesh_.rank_count() + peer];
      uint64_t arrival = fabric_.arrival_ns(me, mesh_.world_rank[peer], now);
      if (!board.on_their_way.empty()) {
        arrival = std::max(arrival, board.on_their_way.back().arrival_ns);
        // One that cannot leave makes room for the newest.
        if (board.on_their_way.back().arrival_ns == kNever) board.on_their_way.pop_back();
      }
      const uint64_t told =
          arrival == kNever ? kNever : fabric_.arrival_ns(mesh_.world_rank[peer], me, arrival);
      board.told_ns = told;
      if (board.unreached_ns == 0) board.unreached_ns = now;
      board.on_their_way.push_back({arrival, told, {notice.begin(), notice.end()}});
      fabric_.world_.poke(mesh_.world_rank[peer], arrival);
    }
  }

  // Time alone changes what has arrived.
  uint64_t change_count() const override { return ++change_count_; }

  bool read(Rank peer, uint32_t* version, std::string* notice) const override {
    if (peer == rank_) {
      *notice = shown_;
      return std::exchange(*version, version_) != version_;
    }
    const uint64_t now = fabric_.world_.now_ns();
    Board& board = mesh_.boards[peer * mesh_.rank_count() + rank_];
    while (!board.on_their_way.empty() && board.on_their_way.front().arrival_ns <= now) {
      board.latest = std::move(board.on_their_way.front().bytes);
      board.on_their_way.pop_front();
      ++board.version;
      fabric_.world_.trace().add(now, mesh_.world_rank[rank_], What::kHeard, mesh_.world_rank[peer],
                                 0, board.latest.size());
    }
    notice->assign(board.latest.begin(), board.latest.end());
    return std::exchange(*version, board.version) != board.version;
  }

  // Whether a rank has died is what the transport's options say.
  control::Life life(Rank) const override { return control::Life::kHere; }

  void collect_unreached(std::vector<Unreached>* ranks) const override {
    ranks->clear();
    const uint64_t now = fabric_.world_.now_ns();
    for (uint32_t peer = 0; peer < mesh_.rank_count(); ++peer) {
      if (peer == rank_) continue;
      Board& board = mesh_.boards[rank_ * mesh_.rank_count() + peer];
      const bool gone = now >= mesh_.goodbye_ns[peer * mesh_.rank_count() + rank_] ||
                        now >= mesh_.dead_seen_ns[peer];
      if (gone || board.told_ns <= now) board.unreached_ns = 0;
      if (board.unreached_ns != 0) ranks->push_back({peer, board.unreached_ns});
    }
  }
  void leave() override {}

  // No transport of the simulation asks for these.
  Status send(Rank, uint8_t, std::string_view) override { return unsupported(); }
  bool receive(Rank, uint8_t, std::string*) override { return false; }
  Status flush(Rank, uint64_t) override { return Status(); }
  bool shares_host(Rank) const override { return false; }
  Status offer(const Key&, int) override { return unsupported(); }
  void withdraw(const Key&) override {}
  Result<int> fetch(Rank, const Key&, uint64_t, const StillPossible&) override {
    return unsupported();
  }
  net::Mac pair_key(Rank, std::string_view) const override { return {}; }
  std::string describe(Rank) const override { return {}; }
  // Messages go through the fabric: no transport connects.
  Status listen(int) override { return Status(Code::kUnsupported, "a fabric has no listeners"); }
  void connect(Rank, const control::Purpose&, std::vector<control::Path>, uint64_t) override {}
  bool connected(uint8_t, control::Connected*) override { return false; }
  net::IpAddress own_address(Rank) const override { return {}; }

 private:
  static Status unsupported() { return Status(Code::kUnsupported, "not in the simulation"); }

  Fabric& fabric_;
  Mesh& mesh_;
  const uint32_t rank_;
  std::string shown_;
  uint32_t version_ = 0;
  mutable uint64_t change_count_ = 0;
};

std::unique_ptr<control::Network> Fabric::network(uint64_t comm_id, uint32_t rank,
                                                  uint32_t rank_count) {
  return std::make_unique<FabricNetwork>(g_fabric, g_fabric->mesh_of(comm_id, rank_count), rank);
}

const weir_transport_functions_t* Fabric::transport() {
  static weir_transport_functions_t table = {
      .abi_version = WEIR_PLUGIN_ABI_VERSION,
      .struct_bytes = sizeof(weir_transport_functions_t),
      .name = "sim",
      .summary = "a simulated network",
      .caps = {.bits = 0,
               .memory_kinds = WEIR_MEMORY_HOST,
               .lane_count = kLanesMax,
               .message_bytes_max = uint64_t{1} << 40,
               .rank_count_max = 64,
               .credit = 1},
      .viable = Functions::viable,
      .open = Functions::open,
      .address = Functions::address,
      .connect = Functions::connect,
      .close = Functions::close,
      .send = Functions::send,
      .recv = Functions::recv,
      .test = Functions::test,
      .progress = Functions::progress,
      .segment = Functions::segment,
      .peer_alive = Functions::peer_alive,
  };
  table.caps.bits = WEIR_CAP_SEND_RECV | WEIR_CAP_SELF;
  if (g_fabric != nullptr) {
    const FabricOptions& options = g_fabric->options_;
    if (options.shares_memory) table.caps.bits |= WEIR_CAP_SEGMENT;
    if (options.sees_death) table.caps.bits |= WEIR_CAP_PEER_FAILURE;
    table.caps.lane_count = options.lane_count;
    table.caps.credit = options.credit;
  }
  return &table;
}

}  // namespace weir::simnet
