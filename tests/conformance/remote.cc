// SPDX-License-Identifier: Apache-2.0
// Properties of one-sided operations: registered memory and its keys, put, get, and the order of a
// signal behind its bytes.
#include <dirent.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "conformance/harness.h"
#include "conformance/window.h"

namespace weir::conformance {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;
const std::initializer_list<weir_result_t> kBad = {WEIR_ERROR_INVALID_ARGUMENT,
                                                   WEIR_ERROR_INVALID_USAGE};

std::vector<uint64_t> sizes_to(uint64_t largest) {
  std::vector<uint64_t> sizes = {0, 1, 7, 8, 63, 1000, 4095, 4096, 4097, 8192, 65'537};
  sizes.push_back(largest);
  return sizes;
}

void puts_arrive(const Variant& variant) {
  run_ranks(variant, variant.rank_count(3), [](Rank& r) {
    join_for(r, WEIR_CAP_PUT);
    constexpr uint64_t kPart = 2 * kMiB;
    Window window(r, kPart * r.count());
    std::vector<unsigned char> data(kPart);
    uint64_t step = 0;
    for (const uint64_t bytes : sizes_to(kPart - 3)) {
      memset(window.bytes(), 0xee, window.size());
      meet(r, ++step);
      for (uint32_t peer = 0; peer < r.count(); ++peer) {
        if (window.remotes[peer] == nullptr) continue;
        const uint64_t stream = step * 100 + r.rank() * 10 + peer;
        fill(data.data(), bytes, stream);
        weir_transport_op_t op{};
        r.wait(&op,
               r.f().put(r.instance(), window.remotes[peer], r.rank() * kPart + 1, data.data(),
                         bytes, &op),
               "put");
      }
      meet(r, ++step);
      for (uint32_t from = 0; from < r.count(); ++from) {
        if (window.remotes[from] == nullptr) continue;
        const uint64_t stream = (step - 1) * 100 + from * 10 + r.rank();
        const unsigned char* part = window.bytes() + from * kPart;
        r.require(part[0] == 0xee && part[bytes + 1] == 0xee, "a put wrote beside its bytes");
        require_bytes(r, part + 1, bytes, stream, "a put arrived changed");
      }
    }
    meet(r, ++step);
  });
}

void gets_bring(const Variant& variant) {
  run_ranks(variant, variant.rank_count(3), [](Rank& r) {
    join_for(r, WEIR_CAP_GET);
    constexpr uint64_t kBytes = 2 * kMiB;
    Window window(r, kBytes);
    fill(window.bytes(), window.size(), r.rank());
    std::vector<unsigned char> data(kBytes);
    meet(r, 1);
    for (const uint64_t bytes : sizes_to(kBytes - 5)) {
      for (uint32_t peer = 0; peer < r.count(); ++peer) {
        if (window.remotes[peer] == nullptr) continue;
        std::fill(data.begin(), data.end(), static_cast<unsigned char>(0xee));
        weir_transport_op_t op{};
        r.wait(&op, r.f().get(r.instance(), window.remotes[peer], 3, data.data(), bytes, &op),
               "get");
        require_bytes(r, data.data(), bytes, peer, "a get brought something else", 3);
        r.require(data[bytes] == 0xee, "a get wrote beside its bytes");
      }
    }
    meet(r, 2);
  });
}

void many_puts(const Variant& variant) {
  run_ranks(variant, 2, [](Rank& r) {
    join_for(r, WEIR_CAP_PUT);
    constexpr uint64_t kCount = 600;
    constexpr uint64_t kBytes = 9000;
    Window window(r, kCount * kBytes);
    const uint32_t peer = 1 - r.rank();
    std::vector<unsigned char> data(kCount * kBytes);
    fill(data.data(), data.size(), r.rank());
    std::vector<weir_transport_op_t> ops(kCount);
    std::vector<weir_result_t> posted(kCount);
    for (uint64_t i = 0; i < kCount; ++i) {
      posted[i] = r.f().put(r.instance(), window.remotes[peer], i * kBytes,
                            data.data() + i * kBytes, kBytes, &ops[i]);
    }
    for (uint64_t i = kCount; i-- > 0;) r.wait(&ops[i], posted[i], "a put among many");
    meet(r, 1);
    require_bytes(r, window.bytes(), data.size(), peer, "a put among many arrived changed");
    meet(r, 2);
  });
}

void bounds_hold(const Variant& variant) {
  run_ranks(variant, 2, [](Rank& r) {
    join_for(r, WEIR_CAP_PUT);
    Window window(r, 4096);
    const std::vector<uint64_t> before = window.words;
    const weir_transport_remote_t* remote = window.remotes[1 - r.rank()];
    const uint64_t size = window.size();
    std::vector<unsigned char> data(2 * size, 0x55);
    const std::pair<uint64_t, uint64_t> outside[] = {
        {0, size + 1},        {1, size},         {size, 1},
        {size + 1, 0},        {~uint64_t{0}, 2}, {8, ~uint64_t{0}},
        {~uint64_t{0} - 7, 8}};
    for (const auto& [offset, bytes] : outside) {
      weir_transport_op_t op{};
      const auto refuse = [&](weir_result_t posted) {
        r.require_error(r.wait_result(&op, posted), kBad);
        op = {};
      };
      refuse(r.f().put(r.instance(), remote, offset, data.data(), bytes, &op));
      if (r.variant().can(WEIR_CAP_GET)) {
        refuse(r.f().get(r.instance(), remote, offset, data.data(), bytes, &op));
      }
      if (r.variant().can(WEIR_CAP_SIGNAL)) {
        refuse(
            r.f().put_signal(r.instance(), remote, offset, data.data(), bytes, remote, 0, 1, &op));
      }
    }
    meet(r, 1);
    r.require(window.words == before, "what was refused has written");
    meet(r, 2);
    weir_transport_op_t op{};
    r.wait(&op, r.f().put(r.instance(), remote, 0, data.data(), size, &op), "a put of all");
    meet(r, 3);
  });
}

void keys_are_proven(const Variant& variant) {
  run_ranks(variant, 3, [](Rank& r) {
    join_for(r, WEIR_CAP_PUT);
    Window window(r, 4096);
    const uint32_t peer = (r.rank() + 1) % r.count();
    const uint32_t other = (r.rank() + 2) % r.count();
    const Key good = window.keys[peer];
    weir_transport_remote_t* remote = nullptr;
    const auto refuse = [&](uint32_t of, const Key& key, const char* what) {
      const weir_result_t result = window.open(of, key, &remote);
      r.require(result == WEIR_ERROR_REFUSED, std::string(what) + " was not refused");
      r.require_error(result, {WEIR_ERROR_REFUSED}, {std::to_string(of)});
    };
    for (size_t bytes = 0; bytes < good.size(); ++bytes) {
      refuse(peer, Key(good.begin(), good.begin() + static_cast<ptrdiff_t>(bytes)), "a cut key");
    }
    for (size_t i = 0; i < good.size(); ++i) {
      Key changed = good;
      changed[i] ^= static_cast<unsigned char>(1u << r.random()() % 8);
      refuse(peer, changed, "a changed key");
    }
    Key longer = good;
    longer.push_back(0);
    refuse(peer, longer, "a longer key");
    refuse(peer, Key(WEIR_TRANSPORT_KEY_BYTES_MAX + 1), "a key beyond all bounds");
    refuse(other, good, "a key of another rank");
    r.require_error(window.open(r.count(), good, &remote), kBad);
    meet(r, 1);
    r.close();
    r.barrier();
    r.config.comm_id += 9;
    r.join();
    refuse(peer, good, "a key of another communicator");
    r.barrier();
  });
}

// Every rank writes into slots of its successor, with messages on the way besides, and its
// successor reads each as soon as the signal says so.
void signals_follow(const Variant& variant) {
  run_ranks(variant, variant.rank_count(3), [](Rank& r) {
    join_for(r, WEIR_CAP_SIGNAL | WEIR_CAP_PUT);
    constexpr uint32_t kSlots = 6;
    constexpr uint64_t kSlotBytes = 200 * kKiB;
    constexpr uint64_t kRounds = 120;
    constexpr uint64_t kWords = 2 * kSlots * 8;  // full, then free
    Window window(r, kWords + kSlots * kSlotBytes);
    const uint32_t next = (r.rank() + 1) % r.count();
    const uint32_t last = (r.rank() + r.count() - 1) % r.count();
    if (window.remotes[next] == nullptr) return;
    std::mt19937_64 sizes(test_seed());  // the same on all ranks
    std::vector<uint64_t> bytes_of(kRounds);
    for (uint64_t& bytes : bytes_of) {
      const uint64_t kind = sizes() % 4;
      bytes = kind == 0   ? sizes() % 64
              : kind == 1 ? sizes() % 9000
              : kind == 2 ? sizes() % (100 * kKiB)
                          : sizes() % kSlotBytes;
    }
    std::vector<std::vector<unsigned char>> out(kSlots, std::vector<unsigned char>(kSlotBytes));
    std::vector<weir_transport_op_t> ops(kSlots), frees(kSlots);
    std::vector<weir_result_t> posted(kSlots, WEIR_OK), freed(kSlots, WEIR_OK);
    std::vector<uint64_t> seen(2 * kSlots);
    const auto signal = [&](uint32_t word) {
      const uint64_t value = window.signal(word * 8);
      r.require(value >= seen[word], "a signal went back");
      return seen[word] = value;
    };
    uint64_t written = 0, read = 0;
    const auto write_one = [&] {
      const uint32_t slot = static_cast<uint32_t>(written % kSlots);
      const uint64_t turn = written / kSlots;
      if (written == kRounds || signal(kSlots + slot) < turn) return;
      r.wait(&ops[slot], posted[slot], "put_signal");
      fill(out[slot].data(), bytes_of[written], written);
      ops[slot] = {};
      posted[slot] = r.f().put_signal(
          r.instance(), window.remotes[next], kWords + slot * kSlotBytes, out[slot].data(),
          bytes_of[written], window.remotes[next], slot * 8, 1, &ops[slot]);
      r.require(posted[slot] <= WEIR_IN_PROGRESS, "put_signal: " + r.error_text());
      ++written;
    };
    const auto read_one = [&] {
      const uint32_t slot = static_cast<uint32_t>(read % kSlots);
      if (read == kRounds || signal(slot) < read / kSlots + 1) return;
      const unsigned char* at = window.bytes() + kWords + slot * kSlotBytes;
      require_bytes(r, at, bytes_of[read], read, "a signal overtook its bytes");
      r.wait(&frees[slot], freed[slot], "a signal alone");
      frees[slot] = {};
      freed[slot] = r.f().put_signal(r.instance(), nullptr, 0, nullptr, 0, window.remotes[last],
                                     (kSlots + slot) * 8, 1, &frees[slot]);
      r.require(freed[slot] <= WEIR_IN_PROGRESS, "a signal alone: " + r.error_text());
      ++read;
    };
    std::vector<unsigned char> message(30'000), answer(30'000);
    weir_transport_op_t send_op{}, recv_op{};
    weir_result_t sent = WEIR_OK, came = WEIR_OK;
    uint64_t exchanges = 0;
    const auto load = [&] {
      const auto done = [&](weir_transport_op_t* op, weir_result_t* at) {
        if (*at == WEIR_IN_PROGRESS) *at = r.f().test(r.instance(), op);
        r.require(*at <= WEIR_IN_PROGRESS, "a message beside puts: " + r.error_text());
        return *at == WEIR_OK;
      };
      const bool both = done(&send_op, &sent) & done(&recv_op, &came);
      if (!both || exchanges == kRounds) return;
      ++exchanges;
      send_op = recv_op = {};
      came = r.f().recv(r.instance(), last, 0, answer.data(), answer.size(), &recv_op);
      sent = r.f().send(r.instance(), next, 0, message.data(), message.size(), &send_op);
    };
    wait_until(r, "a signal", [&] {
      write_one();
      read_one();
      load();
      return written == kRounds && read == kRounds && exchanges == kRounds && sent == WEIR_OK &&
             came == WEIR_OK;
    });
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      r.wait(&ops[slot], posted[slot], "put_signal");
      r.wait(&frees[slot], freed[slot], "a signal alone");
    }
    meet(r, 1);
  });
}

void completed_puts_precede(const Variant& variant) {
  run_ranks(variant, 2, [](Rank& r) {
    join_for(r, WEIR_CAP_SIGNAL | WEIR_CAP_PUT);
    constexpr uint64_t kBytes = 300 * kKiB;
    Window window(r, 8 + kBytes);
    std::vector<unsigned char> data(kBytes);
    for (uint64_t round = 1; round <= 40; ++round) {
      if (r.rank() == 0) {
        fill(data.data(), kBytes, round);
        for (uint64_t half = 0; half < 2; ++half) {
          weir_transport_op_t op{};
          const uint64_t at = half * kBytes / 2;
          r.wait(
              &op,
              r.f().put(r.instance(), window.remotes[1], 8 + at, data.data() + at, kBytes / 2, &op),
              "put");
        }
        weir_transport_op_t op{};
        r.wait(&op,
               r.f().put_signal(r.instance(), nullptr, 0, nullptr, 0, window.remotes[1], 0, 1, &op),
               "a signal alone");
      } else {
        wait_until(r, "a signal", [&] { return window.signal(0) == round; });
        require_bytes(r, window.bytes() + 8, kBytes, round, "a signal overtook a put");
      }
      meet(r, round);
    }
  });
}

void every_signal_counts(const Variant& variant) {
  run_ranks(variant, variant.rank_count(4), [](Rank& r) {
    join_for(r, WEIR_CAP_SIGNAL | WEIR_CAP_PUT);
    constexpr uint64_t kCount = 700;
    Window window(r, 8 + 8 * kCount * r.count());
    if (window.remotes[0] != nullptr) {
      std::vector<weir_transport_op_t> ops(kCount);
      std::vector<weir_result_t> posted(kCount);
      std::vector<uint64_t> values(kCount);
      for (uint64_t i = 0; i < kCount; ++i) {
        values[i] = r.rank() * 1000 + i;
        posted[i] = r.f().put_signal(r.instance(), window.remotes[0],
                                     8 + 8 * (r.rank() * kCount + i), &values[i], 8,
                                     window.remotes[0], 0, 1 + (uint64_t{1} << 32) * i, &ops[i]);
      }
      for (uint64_t i = 0; i < kCount; ++i) r.wait(&ops[i], posted[i], "one signal of many");
    }
    if (r.rank() == 0) {
      const uint64_t writers = r.count() - (window.remotes[0] == nullptr ? 1 : 0);
      const uint64_t each = kCount + (uint64_t{1} << 32) * (kCount * (kCount - 1) / 2);
      wait_until(r, "the last of many signals", [&] { return window.signal(0) == writers * each; });
      for (int i = 0; i < 1000; ++i) {
        r.require(window.signal(0) == writers * each, "a signal was added twice");
      }
      for (uint32_t rank = window.remotes[0] == nullptr ? 1 : 0; rank < r.count(); ++rank) {
        for (uint64_t i = 0; i < kCount; ++i) {
          r.require(window.words[1 + rank * kCount + i] == rank * 1000 + i, "a word is missing");
        }
      }
    }
    meet(r, 1);
  });
}

void bad_arguments(const Variant& variant) {
  run_ranks(variant, 2, [](Rank& r) {
    join_for(r, WEIR_CAP_PUT);
    Window window(r, 4096);
    const weir_transport_remote_t* remote = window.remotes[1 - r.rank()];
    const weir_transport_functions_t& f = r.f();
    weir_transport_memory_t* memory = nullptr;
    uint64_t value = 0;
    weir_transport_op_t op{};
    const auto bad = [&](weir_result_t result) {
      r.require_error(r.wait_result(&op, result), kBad);
      op = {};
    };
    bad(f.memory_register(r.instance(), nullptr, 8, &memory));
    bad(f.memory_register(r.instance(), &value, 0, &memory));
    bad(f.memory_register(r.instance(), &value, ~uint64_t{0}, &memory));
    bad(f.put(r.instance(), nullptr, 0, &value, 8, &op));
    bad(f.test(r.instance(), &op));
    if (r.variant().can(WEIR_CAP_GET)) bad(f.get(r.instance(), nullptr, 0, &value, 8, &op));
    if (r.variant().can(WEIR_CAP_SIGNAL)) {
      const auto signal = [&](const weir_transport_remote_t* data, uint64_t bytes,
                              const weir_transport_remote_t* word, uint64_t offset, uint64_t add) {
        return f.put_signal(r.instance(), data, 0, &value, bytes, word, offset, add, &op);
      };
      bad(signal(remote, 8, nullptr, 0, 1));
      bad(signal(nullptr, 8, remote, 0, 1));
      bad(signal(remote, 8, remote, 0, 0));
      bad(signal(remote, 8, remote, 4, 1));
      bad(signal(remote, 8, remote, window.size() - 4, 1));
      bad(signal(remote, 8, remote, window.size(), 1));
      if (r.variant().can(WEIR_CAP_SELF)) bad(signal(remote, 8, window.remotes[r.rank()], 0, 1));
      bad(f.signal_read(r.instance(), window.memory, 4, &value));
      bad(f.signal_read(r.instance(), window.memory, window.size(), &value));
      bad(f.signal_read(r.instance(), window.memory, ~uint64_t{0} - 7, &value));
    }
    meet(r, 1);
  });
}

size_t count_descriptors() {
  size_t count = 0;
  DIR* stream = opendir("/proc/self/fd");
  while (readdir(stream) != nullptr) ++count;
  closedir(stream);
  return count;
}

void over_and_over(const Variant& variant) {
  run_ranks(variant, 2, [](Rank& r) {
    join_for(r, WEIR_CAP_PUT);
    Window window(r, 4096);
    const uint32_t peer = 1 - r.rank();
    size_t before = 0;
    std::vector<unsigned char> data(5000);
    for (int i = 0; i < 300; ++i) {
      if (i == 10) before = count_descriptors();
      weir_transport_memory_t* memory = nullptr;
      weir_transport_remote_t* remote = nullptr;
      r.require_ok(r.f().memory_register(r.instance(), data.data(), data.size(), &memory),
                   "memory_register");
      r.require_ok(window.open(peer, window.keys[peer], &remote), "remote_open");
      weir_transport_op_t op{};
      r.wait(&op, r.f().put(r.instance(), remote, 0, data.data(), 4096, &op), "put");
      r.f().remote_close(r.instance(), remote);
      r.f().memory_deregister(r.instance(), memory);
    }
    // Threads of libraries open and close descriptors meanwhile, and libraries connect once more
    // when they find it worth it: what leaks is as many as there were registrations.
    const size_t most = before + (r.variant().processes ? 8 : 64);
    size_t after = count_descriptors();
    for (int i = 0; i < 2000 && after > most; ++i) {
      usleep(1000);
      after = count_descriptors();
    }
    r.require(after <= most, "descriptors leak: " + std::to_string(before) + " before, " +
                                 std::to_string(after) + " after");
    meet(r, 1);
  });
}

constexpr uint64_t kPut = WEIR_CAP_SEND_RECV | WEIR_CAP_PUT;
constexpr uint64_t kSignal = kPut | WEIR_CAP_SIGNAL;

}  // namespace

const std::vector<Property>& remote_properties() {
  static const std::vector<Property> properties = {
      {"PutsOfEverySizeArriveWhereTheyAreToGo", kPut, 1, puts_arrive},
      {"GetsOfEverySizeBringWhatIsThere", WEIR_CAP_SEND_RECV | WEIR_CAP_GET, 1, gets_bring},
      {"ManyPutsMayBeUnderWay", kPut, 2, many_puts},
      {"WhatLiesOutsideOfRemoteMemoryIsRefused", kPut, 2, bounds_hold},
      {"KeysThatAreCutChangedOrOfStrangersAreRefused", kPut, 3, keys_are_proven},
      {"ASignalIsSeenAfterItsBytesUnderLoad", kSignal, 1, signals_follow},
      {"ASignalIsSeenAfterPutsThatWereComplete", kSignal, 2, completed_puts_precede},
      {"EverySignalOfManyRanksIsAddedOnce", kSignal, 1, every_signal_counts},
      {"BadOneSidedArgumentsAreErrorsWithAText", kPut, 2, bad_arguments},
      {"MemoryMayBeRegisteredOverAndOver", kPut, 2, over_and_over},
  };
  return properties;
}

}  // namespace weir::conformance
