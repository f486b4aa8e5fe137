// SPDX-License-Identifier: Apache-2.0
// weir.h: the library, communicators and memory.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "api/checks.h"
#include "api/errors.h"
#include "api/handles.h"
#include "api/unique_id.h"
#include "core/base/clock.h"
#include "core/base/settings.h"
#include "core/comm/start/bootstrap.h"
#include "core/comm/start/bootstrap_place.h"
#include "core/comm/start/launch.h"
#include "core/comm/start/rendezvous.h"

using weir::Rank;
using weir::Result;
using weir::Secret;
using weir::Status;
using weir::api::guarded;
using weir::api::invalid;
using weir::api::report;
using weir::comm::CommOptions;
using weir::comm::Communicator;

namespace {

Result<CommOptions> read_config(const weir_comm_config_t* config) {
  CommOptions options;
  if (config == nullptr) return options;
  constexpr size_t kFirstVersion = sizeof(weir_comm_config_t);
  if (config->struct_bytes < kFirstVersion) {
    return weir::invalid_argument(
        fmt::format("config.struct_bytes is {}, less than {}: start from WEIR_COMM_CONFIG_INIT",
                    config->struct_bytes, kFirstVersion));
  }
  if (config->timeout_ms < 0) {
    return weir::invalid_argument(
        fmt::format("config.timeout_ms is {}: it must not be negative", config->timeout_ms));
  }
  constexpr uint32_t kFlags =
      WEIR_COMM_DETERMINISTIC | WEIR_COMM_HOST_MEMORY | WEIR_COMM_NCCL_ARITHMETIC;
  if ((config->flags & ~kFlags) != 0) {
    return weir::invalid_argument(
        fmt::format("config.flags {:#x} has bits that this version does not know", config->flags));
  }
  options.timeout_ms = config->timeout_ms;
  options.deterministic = (config->flags & WEIR_COMM_DETERMINISTIC) != 0;
  options.host_memory = (config->flags & WEIR_COMM_HOST_MEMORY) != 0;
  if ((config->flags & WEIR_COMM_NCCL_ARITHMETIC) != 0) {
    options.arithmetic = weir::Arithmetic::kNccl;
  }
  if (config->name != nullptr) {
    if (strnlen(config->name, 257) > 256) {
      return weir::invalid_argument("config.name is longer than 256 characters");
    }
    options.name = config->name;
    std::replace_if(
        options.name.begin(), options.name.end(),
        [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  }
  return options;
}

weir_result_t hand_out(Result<std::unique_ptr<Communicator>> made, weir_comm_t* out,
                       weir_comm_t parent = nullptr) {
  if (!made.ok()) return report(made.status(), parent);
  if (made.value() == nullptr) return WEIR_OK;  // a rank that takes no part
  auto handle = std::make_unique<weir_comm>();
  handle->comm = made.take();
  *out = handle.release();
  return WEIR_OK;
}

}  // namespace

int weir_version(void) { return WEIR_VERSION; }

weir_result_t weir_get_unique_id(weir_unique_id_t* id) {
  return guarded([&] {
    if (id == nullptr) return invalid("get_unique_id: id is NULL");
    const Status usable = weir::comm::check_interfaces();
    if (!usable.ok()) return report(usable.with_context("get_unique_id"));
    auto secret = Secret::random();
    if (!secret.ok()) return report(secret.status());
    std::memset(id, 0, sizeof *id);
    std::memcpy(id->bytes, kIdMagic, sizeof kIdMagic);
    std::memcpy(id->bytes + sizeof kIdMagic, secret.value().bytes.data(),
                secret.value().bytes.size());
    const std::string place = weir::comm::pack(weir::comm::place_of_this_host());
    std::memcpy(id->bytes + kIdPlaceOffset, place.data(), place.size());
    return WEIR_OK;
  });
}

weir_result_t weir_comm_create(weir_comm_t* comm, int rank_count, const weir_unique_id_t* id,
                               int rank, const weir_comm_config_t* config) {
  return guarded([&] {
    if (comm == nullptr) return invalid("comm_create: comm is NULL");
    *comm = nullptr;
    WEIR_REFUSE_IN_CALLBACK("comm_create", nullptr);
    if (id == nullptr) return invalid("comm_create: id is NULL");
    if (std::memcmp(id->bytes, kIdMagic, sizeof kIdMagic) != 0) {
      return invalid("comm_create: id was not made by weir_get_unique_id of this version");
    }
    if (rank_count < 1) {
      return invalid(
          fmt::format("comm_create: rank_count is {}; it must be at least 1", rank_count));
    }
    if (rank < 0 || rank >= rank_count) {
      return invalid(fmt::format("comm_create: rank {} of {} ranks: rank must be in [0, {})", rank,
                                 rank_count, rank_count));
    }
    auto options = read_config(config);
    if (!options.ok()) return report(options.status().with_context("comm_create"));
    Secret secret;
    std::memcpy(secret.bytes.data(), id->bytes + sizeof kIdMagic, secret.bytes.size());
    weir::comm::Place place;
    const std::string_view packed(reinterpret_cast<const char*>(id->bytes) + kIdPlaceOffset,
                                  weir::comm::kPlaceBytesMax);
    if (!weir::comm::unpack(packed, &place)) {
      return invalid("comm_create: the addresses in id are damaged");
    }
    return hand_out(Communicator::create(secret, static_cast<Rank>(rank),
                                         static_cast<Rank>(rank_count), options.value(), place),
                    comm);
  });
}

weir_result_t weir_comm_create_from_env(weir_comm_t* comm, const weir_comm_config_t* config) {
  return guarded([&] {
    if (comm == nullptr) return invalid("comm_create_from_env: comm is NULL");
    *comm = nullptr;
    WEIR_REFUSE_IN_CALLBACK("comm_create_from_env", nullptr);
    auto options = read_config(config);
    if (!options.ok()) return report(options.status().with_context("comm_create_from_env"));
    auto launch = weir::comm::launch_from_environment(environ);
    if (!launch.ok()) return report(launch.status());
    const auto& settings = weir::process_settings();
    if (!settings.ok()) return report(settings.status());
    if (options.value().timeout_ms <= 0) options.value().timeout_ms = settings.value().timeout_ms;
    const uint64_t deadline_ns =
        weir::now_ns() + static_cast<uint64_t>(options.value().timeout_ms) * 1'000'000u;
    auto rendezvous = weir::comm::next_rendezvous(launch.value(), deadline_ns);
    if (!rendezvous.ok()) return report(rendezvous.status());
    weir::comm::JoinOptions joining;
    joining.remedy = rendezvous.value().remedy;
    return hand_out(Communicator::create(rendezvous.value().secret, launch.value().rank,
                                         launch.value().rank_count, options.value(),
                                         rendezvous.value().place, joining),
                    comm);
  });
}

weir_result_t weir_comm_split(weir_comm_t comm, int color, int key,
                              const weir_comm_config_t* config, weir_comm_t* new_comm) {
  return guarded([&] {
    WEIR_CHECK_COMM(comm, "comm_split");
    WEIR_REFUSE_IN_CALLBACK("comm_split", comm);
    if (new_comm == nullptr) return invalid("comm_split: new_comm is NULL", comm);
    *new_comm = nullptr;
    if (color < -1) return invalid(fmt::format("comm_split: color {} is below -1", color), comm);
    auto options = read_config(config);
    if (!options.ok()) return report(options.status().with_context("comm_split"), comm);
    return hand_out(comm->comm->split(color, key, options.value()), new_comm, comm);
  });
}

weir_result_t weir_comm_add_program(weir_comm_t comm, const char* name, const void* text,
                                    size_t bytes, uint32_t flags) {
  return guarded([&] {
    WEIR_CHECK_COMM(comm, "comm_add_program");
    WEIR_REFUSE_IN_CALLBACK("comm_add_program", comm);
    // The other ranks wait for this one: they hear what is wrong with its call.
    weir::Status mistake;
    if (name == nullptr) {
      mistake = weir::invalid_argument("name is NULL");
    } else if (text == nullptr) {
      mistake = weir::invalid_argument("text is NULL");
    } else if ((flags & ~uint32_t{WEIR_PROGRAM_PREFERRED}) != 0) {
      mistake = weir::invalid_argument(fmt::format("flags {:#x} are not WEIR_PROGRAM_*", flags));
    }
    const std::string_view given(static_cast<const char*>(text), text == nullptr ? 0 : bytes);
    return report(comm->comm
                      ->add_program(name == nullptr ? "" : name, given,
                                    (flags & WEIR_PROGRAM_PREFERRED) != 0, mistake)
                      .with_context("comm_add_program"),
                  comm);
  });
}

weir_result_t weir_comm_lost_ranks(weir_comm_t comm, int* ranks, int capacity, int* count) {
  return guarded([&] {
    WEIR_CHECK_COMM(comm, "comm_lost_ranks");
    if (count == nullptr) return invalid("comm_lost_ranks: count is NULL", comm);
    if (capacity < 0 || (capacity > 0 && ranks == nullptr)) {
      return invalid(fmt::format("comm_lost_ranks: capacity is {} and ranks is {}; capacity must "
                                 "not be negative, and ranks not NULL",
                                 capacity, fmt::ptr(ranks)),
                     comm);
    }
    const std::vector<Rank> lost = comm->comm->lost_ranks();
    *count = static_cast<int>(lost.size());
    for (int i = 0; i < std::min(capacity, *count); ++i) ranks[i] = static_cast<int>(lost[i]);
    return WEIR_OK;
  });
}

weir_result_t weir_comm_shrink(weir_comm_t comm, const int* excluded_ranks, int excluded_count,
                               const weir_comm_config_t* config, weir_comm_t* new_comm) {
  return guarded([&] {
    WEIR_CHECK_COMM(comm, "comm_shrink");
    WEIR_REFUSE_IN_CALLBACK("comm_shrink", comm);
    if (new_comm == nullptr) return invalid("comm_shrink: new_comm is NULL", comm);
    *new_comm = nullptr;
    if (excluded_count < 0 || (excluded_count > 0 && excluded_ranks == nullptr)) {
      return invalid(fmt::format("comm_shrink: excluded_count is {} and excluded_ranks is {}; the "
                                 "count must not be negative, and the array not NULL",
                                 excluded_count, fmt::ptr(excluded_ranks)),
                     comm);
    }
    std::vector<Rank> excluded;
    for (int i = 0; i < excluded_count; ++i) {
      if (excluded_ranks[i] < 0) {
        return invalid(fmt::format("comm_shrink: excluded rank {} is negative", excluded_ranks[i]),
                       comm);
      }
      excluded.push_back(static_cast<Rank>(excluded_ranks[i]));
    }
    auto options = read_config(config);
    if (!options.ok()) return report(options.status().with_context("comm_shrink"), comm);
    return hand_out(comm->comm->shrink(excluded, options.value()), new_comm, comm);
  });
}

weir_result_t weir_comm_abort(weir_comm_t comm) {
  return guarded([&] {
    WEIR_CHECK_COMM(comm, "comm_abort");
    comm->comm->abort();
    return WEIR_OK;
  });
}

weir_result_t weir_comm_destroy(weir_comm_t comm) {
  return guarded([&] {
    if (comm == nullptr) return WEIR_OK;
    if (comm->is_of_parent()) {
      comm->mark = 0;
      Communicator::leave_to_parent(std::move(comm->comm));
    } else {
      WEIR_CHECK_COMM(comm, "comm_destroy");
      WEIR_REFUSE_IN_CALLBACK("comm_destroy", comm);
      weir::api::leave_open_group(comm);
      comm->mark = 0;
    }
    delete comm;
    return WEIR_OK;
  });
}

weir_result_t weir_comm_rank(weir_comm_t comm, int* rank) {
  return guarded([&] {
    WEIR_CHECK_COMM(comm, "comm_rank");
    if (rank == nullptr) return invalid("comm_rank: rank is NULL", comm);
    *rank = static_cast<int>(comm->comm->rank());
    return WEIR_OK;
  });
}

weir_result_t weir_comm_size(weir_comm_t comm, int* rank_count) {
  return guarded([&] {
    WEIR_CHECK_COMM(comm, "comm_size");
    if (rank_count == nullptr) return invalid("comm_size: rank_count is NULL", comm);
    *rank_count = static_cast<int>(comm->comm->rank_count());
    return WEIR_OK;
  });
}

weir_result_t weir_comm_start_times(weir_comm_t comm, weir_start_times_t* times) {
  return guarded([&] {
    WEIR_CHECK_COMM(comm, "comm_start_times");
    if (times == nullptr) return invalid("comm_start_times: times is NULL", comm);
    if (times->struct_bytes < sizeof *times) {
      return invalid(fmt::format("comm_start_times: struct_bytes is {}, less than {}: start from "
                                 "WEIR_START_TIMES_INIT",
                                 times->struct_bytes, sizeof *times),
                     comm);
    }
    const weir::comm::StartTimes& start = comm->comm->start_times();
    times->rendezvous_ns = start.rendezvous_ns;
    times->handshake_ns = start.handshake_ns;
    times->exchange_ns = start.exchange_ns;
    times->connect_ns = start.connect_ns;
    times->costs_ns = start.costs_ns;
    return WEIR_OK;
  });
}

weir_result_t weir_comm_async_error(weir_comm_t comm, weir_result_t* error) {
  return guarded([&] {
    WEIR_CHECK_COMM(comm, "comm_async_error");
    if (error == nullptr) return invalid("comm_async_error: error is NULL", comm);
    const Status status = comm->comm->async_error();
    *error = static_cast<weir_result_t>(status.code());
    if (!status.ok()) comm->comm->note_error(status);
    return WEIR_OK;
  });
}

weir_result_t weir_comm_set_timeout(weir_comm_t comm, int64_t timeout_ms) {
  return guarded([&] {
    WEIR_CHECK_COMM(comm, "comm_set_timeout");
    if (timeout_ms <= 0) {
      return invalid(fmt::format("comm_set_timeout: {} ms is not positive", timeout_ms), comm);
    }
    comm->comm->set_timeout(timeout_ms);
    return WEIR_OK;
  });
}

weir_result_t weir_mem_alloc(weir_comm_t comm, size_t bytes, void** memory) {
  return guarded([&] {
    WEIR_CHECK_COMM(comm, "mem_alloc");
    WEIR_REFUSE_IN_CALLBACK("mem_alloc", comm);
    if (memory == nullptr) return invalid("mem_alloc: memory is NULL", comm);
    *memory = nullptr;
    auto made = comm->comm->allocate_memory(bytes);
    if (!made.ok()) return report(made.status(), comm);
    *memory = made.value();
    return WEIR_OK;
  });
}

weir_result_t weir_mem_free(weir_comm_t comm, void* memory) {
  return guarded([&] {
    WEIR_CHECK_COMM(comm, "mem_free");
    if (memory == nullptr) return WEIR_OK;
    return report(comm->comm->free_memory(memory), comm);
  });
}

weir_result_t weir_register(weir_comm_t comm, void* memory, size_t bytes, weir_window_t* window) {
  return guarded([&] {
    WEIR_CHECK_COMM(comm, "register");
    if (window == nullptr) return invalid("register: window is NULL", comm);
    *window = nullptr;
    if (memory == nullptr && bytes > 0) return invalid("register: memory is NULL", comm);
    // Shared memory cannot map private pages of another process; network transports can reach them.
    *window = comm->add_window(std::make_unique<weir_window>(weir_window{.comm = comm}));
    return WEIR_OK;
  });
}

weir_result_t weir_register_symmetric(weir_comm_t comm, void* memory, size_t bytes,
                                      weir_window_t* window) {
  return guarded([&] {
    WEIR_CHECK_COMM(comm, "register_symmetric");
    WEIR_REFUSE_IN_CALLBACK("register_symmetric", comm);
    if (window == nullptr) return invalid("register_symmetric: window is NULL", comm);
    *window = nullptr;
    if (memory == nullptr && bytes > 0) return invalid("register_symmetric: memory is NULL", comm);
    auto made = std::make_unique<weir_window>(weir_window{.comm = comm});
    auto registered = comm->comm->register_symmetric(memory, bytes);
    if (!registered.ok()) return report(registered.status(), comm);
    made->on_devices = registered.value();
    *window = comm->add_window(std::move(made));
    return WEIR_OK;
  });
}

weir_result_t weir_deregister(weir_comm_t comm, weir_window_t window) {
  return guarded([&] {
    WEIR_CHECK_COMM(comm, "deregister");
    if (window == nullptr) return WEIR_OK;
    if (comm->has_window(window) && window->one_sided != nullptr) {
      return invalid(
          "deregister: the window was created by weir_window_create; destroy it with "
          "weir_window_destroy",
          comm);
    }
    const std::unique_ptr<weir_window> taken = comm->take_window(window);
    if (taken == nullptr) {
      return invalid("deregister: the window was deregistered, or is of another communicator",
                     comm);
    }
    if (taken->on_devices != nullptr) comm->comm->deregister_symmetric(taken->on_devices);
    return WEIR_OK;
  });
}

weir_result_t weir_comm_set_stream(weir_comm_t comm, void* stream) {
  return guarded([&] {
    WEIR_CHECK_COMM(comm, "comm_set_stream");
    const bool on_stream = stream != WEIR_NO_STREAM;
    return report(comm->comm->devices().set_stream(on_stream, on_stream ? stream : nullptr), comm);
  });
}

weir_result_t weir_redop_create_premul_sum(weir_comm_t comm, const void* scalar,
                                           weir_datatype_t type, weir_redop_t* op) {
  return guarded([&] {
    WEIR_CHECK_COMM(comm, "redop_create_premul_sum");
    if (scalar == nullptr) return invalid("redop_create_premul_sum: scalar is NULL", comm);
    if (op == nullptr) return invalid("redop_create_premul_sum: op is NULL", comm);
    if (!weir::api::valid_type(type)) {
      return invalid(
          fmt::format("redop_create_premul_sum: data type {} is unknown", static_cast<int>(type)),
          comm);
    }
    auto made = comm->comm->scales().create(static_cast<weir::DataType>(type), scalar);
    if (!made.ok()) return report(made.status(), comm);
    *op = made.value();
    return WEIR_OK;
  });
}

weir_result_t weir_redop_destroy(weir_comm_t comm, weir_redop_t op) {
  return guarded([&] {
    WEIR_CHECK_COMM(comm, "redop_destroy");
    return report(comm->comm->scales().destroy(op), comm);
  });
}
