// SPDX-License-Identifier: Apache-2.0
#include "simnet/world.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <utility>

#include "core/base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#define WEIR_SIMNET_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WEIR_SIMNET_ASAN 1
#endif
#endif
#ifdef WEIR_SIMNET_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

namespace weir::simnet {

namespace {

constexpr size_t kStackBytes = 1u << 20;  // reserved; a page is taken when it is touched
constexpr uint64_t kClockStepNs = 20;
constexpr uint32_t kLooksPerTurn = 32;

World* g_inside = nullptr;

// Stacks are used again by the next world: fresh pages would cost more than the run.
std::vector<void*>& spare_stacks() {
  static std::vector<void*> it;
  return it;
}

void* take_stack() {
  if (!spare_stacks().empty()) {
    void* stack = spare_stacks().back();
    spare_stacks().pop_back();
    return stack;
  }
  void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  WEIR_CHECK(stack != MAP_FAILED, "a rank gets a stack");
  // Who runs off its end must not write into its neighbour's.
  WEIR_CHECK(mprotect(stack, 4096, PROT_NONE) == 0, "a stack has a guard page");
  return stack;
}

}  // namespace

struct World::Fiber {
  uint32_t rank = 0;
  void* stack = nullptr;
  ucontext_t context{};
  ucontext_t caller{};
  uint64_t wake_ns = 0;
  uint64_t least_ns = 0;  // it asked to sleep until then
  uint64_t stopped_until_ns = 0;
  bool dead = false;
  bool ended = false;
  uint32_t looks = 0;  // at the clock, in this turn
  void* fake_stack = nullptr;
  const void* caller_stack = nullptr;
  size_t caller_stack_bytes = 0;
  void* caller_fake_stack = nullptr;

  uint64_t turn_ns(bool closing) const {
    if (ended) return kNever;
    if (closing) return wake_ns;
    if (dead || stopped_until_ns == kNever) return kNever;
    return std::max(wake_ns, stopped_until_ns);
  }
};

World::World(const WorldOptions& options, uint32_t rank_count, Trace* trace)
    : options_(options), random_(mix(options.seed, 1)), trace_(trace) {
  for (uint32_t rank = 0; rank < rank_count; ++rank) {
    auto fiber = std::make_unique<Fiber>();
    fiber->rank = rank;
    fiber->stack = take_stack();
    fiber->wake_ns = now_ns_ + random_.below(50 * kMicrosecond);
    fibers_.push_back(std::move(fiber));
  }
}

World::~World() {
  for (const auto& fiber : fibers_) spare_stacks().push_back(fiber->stack);
}

World* World::inside() { return g_inside; }

void World::enter(unsigned low, unsigned high) {
  auto* world = reinterpret_cast<World*>(uintptr_t{high} << 32 | low);
  Fiber& self = *world->fibers_[world->running_];
#ifdef WEIR_SIMNET_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &self.caller_stack, &self.caller_stack_bytes);
#endif
  world->body_(self.rank);
  self.ended = true;
  world->trace_->add(world->now_ns_, self.rank, What::kEnded);
#ifdef WEIR_SIMNET_ASAN
  __sanitizer_start_switch_fiber(nullptr, self.caller_stack, self.caller_stack_bytes);
#endif
  swapcontext(&self.context, &self.caller);
}

void World::switch_to(Fiber& fiber) {
  running_ = fiber.rank;
  g_inside = this;
#ifdef WEIR_SIMNET_ASAN
  __sanitizer_start_switch_fiber(&fiber.caller_fake_stack, fiber.stack, kStackBytes);
#endif
  swapcontext(&fiber.caller, &fiber.context);
#ifdef WEIR_SIMNET_ASAN
  __sanitizer_finish_switch_fiber(fiber.caller_fake_stack, nullptr, nullptr);
#endif
  g_inside = nullptr;
}

void World::give_turn() {
  Fiber& self = *fibers_[running_];
  self.looks = 0;
#ifdef WEIR_SIMNET_ASAN
  __sanitizer_start_switch_fiber(&self.fake_stack, self.caller_stack, self.caller_stack_bytes);
#endif
  swapcontext(&self.context, &self.caller);
#ifdef WEIR_SIMNET_ASAN
  __sanitizer_finish_switch_fiber(self.fake_stack, &self.caller_stack, &self.caller_stack_bytes);
#endif
}

World::Fiber* World::next() {
  Fiber* first = nullptr;
  uint64_t first_ns = kNever;
  for (const auto& fiber : fibers_) {
    const uint64_t turn_ns = fiber->turn_ns(closing_);
    if (turn_ns >= first_ns) continue;
    first = fiber.get();
    first_ns = turn_ns;
  }
  return first;
}

void World::act() {
  const auto first =
      std::min_element(actions_.begin(), actions_.end(),
                       [](const Action& a, const Action& b) { return a.at_ns < b.at_ns; });
  now_ns_ = std::max(now_ns_, first->at_ns);
  const std::function<void()> action = std::move(first->action);
  actions_.erase(first);
  action();
}

void World::run(const std::function<void(uint32_t rank)>& body) {
  body_ = body;
  const auto self = reinterpret_cast<uintptr_t>(this);
  for (const auto& fiber : fibers_) {
    WEIR_CHECK(getcontext(&fiber->context) == 0, "getcontext works");
    fiber->context.uc_stack.ss_sp = fiber->stack;
    fiber->context.uc_stack.ss_size = kStackBytes;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, reinterpret_cast<void (*)()>(&World::enter), 2,
                static_cast<unsigned>(self), static_cast<unsigned>(self >> 32));
  }
  for (;;) {
    Fiber* fiber = next();
    if (fiber == nullptr) {
      if (closing_) break;
      closing_ = true;
      continue;
    }
    uint64_t action_ns = kNever;
    for (const Action& action : actions_) action_ns = std::min(action_ns, action.at_ns);
    if (!closing_ && action_ns <= fiber->turn_ns(false)) {
      act();
      continue;
    }
    now_ns_ = std::max(now_ns_, fiber->turn_ns(closing_));
    if (!closing_ && options_.quiet_ns_max != kNever &&
        now_ns_ - moved_ns_ > options_.quiet_ns_max) {
      deadlock_ = diagnosis_ ? diagnosis_() : "nothing moves";
      closing_ = true;
      continue;
    }
    switch_to(*fiber);
  }
}

void World::yield() {
  Fiber& self = *fibers_[running_];
  self.least_ns = now_ns_ + kClockStepNs;
  self.wake_ns = self.least_ns + random_.below(options_.yield_ns_max);
  give_turn();
}

void World::sleep(uint64_t least_ns) {
  Fiber& self = *fibers_[running_];
  self.least_ns = now_ns_ + least_ns;
  const uint64_t more_ns = options_.nap_ns_max > least_ns ? options_.nap_ns_max - least_ns : 1;
  self.wake_ns = self.least_ns + random_.below(more_ns);
  give_turn();
}

uint64_t World::look_at_clock() {
  Fiber& self = *fibers_[running_];
  now_ns_ += kClockStepNs;
  if (++self.looks > kLooksPerTurn) {
    self.least_ns = now_ns_;
    self.wake_ns = now_ns_ + random_.below(500 * kMicrosecond);
    give_turn();
  }
  return now_ns_;
}

void World::poke(uint32_t rank, uint64_t at_ns) {
  if (at_ns == kNever) return;
  Fiber& fiber = *fibers_[rank];
  const uint64_t wake_ns = std::max(fiber.least_ns, at_ns + random_.below(2 * kMicrosecond));
  fiber.wake_ns = std::min(fiber.wake_ns, wake_ns);
}

void World::at(uint64_t at_ns, std::function<void()> action) {
  actions_.push_back({at_ns, std::move(action)});
}

void World::stop(uint32_t rank, uint64_t until_ns) {
  Fiber& fiber = *fibers_[rank];
  if (fiber.ended || fiber.dead) return;
  fiber.stopped_until_ns = until_ns;
  trace_->add(now_ns_, rank, What::kStopped, 0, 0, until_ns);
  moved();
  if (g_inside == this && running_ == rank) {
    fiber.wake_ns = now_ns_;
    give_turn();
  }
}

void World::kill(uint32_t rank) {
  Fiber& fiber = *fibers_[rank];
  if (fiber.ended || fiber.dead) return;
  fiber.dead = true;
  trace_->add(now_ns_, rank, What::kDied);
  moved();
  if (g_inside == this && running_ == rank) {
    fiber.wake_ns = now_ns_;
    give_turn();
  }
}

bool World::is_dead(uint32_t rank) const { return fibers_[rank]->dead; }
bool World::is_out(uint32_t rank) const {
  return fibers_[rank]->dead || fibers_[rank]->stopped_until_ns == kNever;
}

}  // namespace weir::simnet
