// SPDX-License-Identifier: Apache-2.0
// World: where the ranks of a simulated job live. Each rank runs its ordinary blocking code on a
// stack of its own; all of them share one thread and one virtual clock, which stands still while a
// rank computes and leaps to the next thing that happens when every rank waits. Who is next, and
// how long a sleep or a yield really takes, is drawn from the seed. One world at a time; one
// thread.
//
// A rank gives its turn away wherever the library would sleep, yield or turn in a loop on the
// clock: outside.cc stands in the place of those functions of the system.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "simnet/random.h"
#include "simnet/trace.h"

namespace weir::simnet {

inline constexpr uint64_t kNever = ~uint64_t{0};
inline constexpr uint64_t kMicrosecond = 1000;
inline constexpr uint64_t kMillisecond = 1'000'000;

struct WorldOptions {
  uint64_t seed = 0;
  uint64_t yield_ns_max = 5 * kMicrosecond;  // how long a rank may be away after it yields
  uint64_t nap_ns_max = 8 * kMillisecond;    // the same after a sleep, however short
  uint64_t quiet_ns_max = kNever;            // nothing has moved for so long: a deadlock
};

class World {
 public:
  World(const WorldOptions& options, uint32_t rank_count, Trace* trace);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // The one that a rank is running in just now; nullptr outside of all ranks.
  static World* inside();

  // Runs `body` as each rank until all that can end have ended; then lets those end that were
  // killed or stopped, in a world that is `closing`: there every transport fails.
  void run(const std::function<void(uint32_t rank)>& body);
  bool closing() const { return closing_; }
  // Says who waits for whom, once nothing has moved for quiet_ns_max; and ends the run.
  void set_diagnosis(std::function<std::string()> diagnosis) { diagnosis_ = std::move(diagnosis); }
  const std::string& deadlock() const { return deadlock_; }  // "" when there was none

  uint64_t now_ns() const { return now_ns_; }
  Random& random() { return random_; }
  Trace& trace() { return *trace_; }
  void moved() { moved_ns_ = now_ns_; }

  // --- From the running rank ---
  uint32_t running() const { return running_; }
  void yield();
  void sleep(uint64_t least_ns);
  // The clock was looked at. A rank that does nothing else loses its turn now and then.
  uint64_t look_at_clock();

  // --- About any rank ---
  // Something for this rank happens then: it is awake soon after.
  void poke(uint32_t rank, uint64_t at_ns);
  // `action` happens at that time, outside of all ranks.
  void at(uint64_t at_ns, std::function<void()> action);
  // For ever, or until `until_ns`. The running rank gives its turn away at once.
  void stop(uint32_t rank, uint64_t until_ns);
  void kill(uint32_t rank);
  bool is_dead(uint32_t rank) const;
  bool is_out(uint32_t rank) const;  // dead or stopped for ever

 private:
  struct Fiber;
  void switch_to(Fiber& fiber);
  void give_turn();
  void step(Fiber& fiber);
  static void enter(unsigned low, unsigned high);
  Fiber* next();
  void act();

  struct Action {
    uint64_t at_ns;
    std::function<void()> action;
  };

  WorldOptions options_;
  Random random_;
  Trace* trace_;
  std::function<void(uint32_t)> body_;
  std::function<std::string()> diagnosis_;
  std::string deadlock_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Action> actions_;
  uint64_t now_ns_ = 1'000'000'000;
  uint64_t moved_ns_ = 1'000'000'000;
  uint32_t running_ = 0;
  bool closing_ = false;
};

}  // namespace weir::simnet
