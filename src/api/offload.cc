// SPDX-License-Identifier: Apache-2.0
// Implements offload.h with the optimizer.
#include "weir/offload.h"

#include <fmt/format.h>

#include <memory>

#include "api/checks.h"
#include "api/errors.h"
#include "api/offload_config.h"
#include "core/base/per_thread.h"
#include "core/base/process_generation.h"
#include "offload/optimizer/optimizer.h"

using weir::Result;
using weir::Status;
using weir::api::guarded;
using weir::api::invalid;
using weir::api::report;
using weir::offload::Optimizer;

namespace {

// The mark detects a handle that is invalid or destroyed, as long as the memory still holds it.
constexpr uint64_t kOptimizerMark = 0x74706f2d72696577ull;  // "weir-opt"

}  // namespace

struct weir_optimizer {
  uint64_t mark = kOptimizerMark;
  const weir::MakingProcess maker;
  std::unique_ptr<Optimizer> optimizer;
};

namespace {

using Maker = Result<std::unique_ptr<Optimizer>> (*)(
    const weir::offload::OptimizerOptions&, const std::vector<weir::offload::ParameterGroup>&);

weir_result_t make(const char* function, Maker maker, weir_optimizer_t* optimizer,
                   const weir_offload_config_t* config, const weir_parameter_group_t* groups,
                   int group_count) {
  if (optimizer == nullptr) return invalid(fmt::format("{}: optimizer is NULL", function));
  *optimizer = nullptr;
  const auto options = weir::api::read_offload_config(config);
  if (!options.ok()) return report(options.status().with_context(function));
  const auto read = weir::api::read_groups(groups, group_count);
  if (!read.ok()) return report(read.status().with_context(function));
  auto made = maker(options.value(), read.value());
  if (!made.ok()) return report(made.status().with_context(function));
  auto handle = std::make_unique<weir_optimizer>();
  handle->optimizer = made.take();
  *optimizer = handle.release();
  return WEIR_OK;
}

weir_result_t of_parent(const weir_optimizer& optimizer, const char* function) {
  return report(Status(weir::Code::kInvalidUsage,
                       fmt::format("{}: {}", function, optimizer.maker.refusal("optimizer"))));
}

}  // namespace

// Returns from the calling function when the handle does not belong to this process.
#define WEIR_CHECK_OPTIMIZER(handle, function)                                                     \
  do {                                                                                             \
    if ((handle) == nullptr) return invalid(function ": the optimizer is NULL");                   \
    if ((handle)->mark != kOptimizerMark)                                                          \
      return invalid(function ": the handle is not an optimizer, or the optimizer was destroyed"); \
    if (!(handle)->maker.is_this()) return of_parent(*(handle), function);                         \
  } while (false)

#define WEIR_CHECK_NOT_NULL(argument, function)                                    \
  do {                                                                             \
    if ((argument) == nullptr) return invalid(function ": " #argument " is NULL"); \
  } while (false)

// The optimizer checks that the group is one of its own.
#define WEIR_CHECK_GROUP(group, function)                                                     \
  do {                                                                                        \
    if ((group) < 0)                                                                          \
      return invalid(fmt::format(function ": group {}: groups are counted from 0", (group))); \
  } while (false)

#define WEIR_CHECK_TYPE(type, function)                                                          \
  do {                                                                                           \
    if (!weir::api::valid_type(type))                                                            \
      return invalid(fmt::format(function ": data type {} is unknown", static_cast<int>(type))); \
  } while (false)

weir_result_t weir_optimizer_create(weir_optimizer_t* optimizer,
                                    const weir_offload_config_t* config,
                                    const weir_parameter_group_t* groups, int group_count) {
  return guarded([&] {
    return make("optimizer_create", &Optimizer::create, optimizer, config, groups, group_count);
  });
}

weir_result_t weir_optimizer_open(weir_optimizer_t* optimizer, const weir_offload_config_t* config,
                                  const weir_parameter_group_t* groups, int group_count) {
  return guarded([&] {
    return make("optimizer_open", &Optimizer::open, optimizer, config, groups, group_count);
  });
}

weir_result_t weir_optimizer_restore(weir_optimizer_t optimizer, const char* const* shards,
                                     int shard_count, int directories_per_shard) {
  return guarded([&] {
    WEIR_CHECK_OPTIMIZER(optimizer, "optimizer_restore");
    if (shard_count < 1 || directories_per_shard < 1 ||
        shard_count > (1 << 24) / directories_per_shard)
      return invalid(
          fmt::format("optimizer_restore: shard_count is {} and directories_per_shard is {}; both "
                      "must be positive, and their product at most 2^24",
                      shard_count, directories_per_shard));
    const auto paths = weir::api::read_paths(shards, shard_count * directories_per_shard, "shards");
    if (!paths.ok()) return report(paths.status().with_context("optimizer_restore"));
    std::vector<std::vector<std::string>> directories;
    for (int i = 0; i < shard_count; ++i) {
      const auto begin = paths.value().begin() + i * directories_per_shard;
      directories.emplace_back(begin, begin + directories_per_shard);
    }
    return report(optimizer->optimizer->restore(directories));
  });
}

weir_result_t weir_optimizer_destroy(weir_optimizer_t optimizer) {
  return guarded([&] {
    if (optimizer == nullptr) return WEIR_OK;
    if (optimizer->mark == kOptimizerMark && !optimizer->maker.is_this()) {
      Optimizer::leave_to_parent(std::move(optimizer->optimizer));
    } else {
      WEIR_CHECK_OPTIMIZER(optimizer, "optimizer_destroy");
    }
    optimizer->mark = 0;
    delete optimizer;
    return WEIR_OK;
  });
}

weir_result_t weir_optimizer_set_parameters(weir_optimizer_t optimizer, int group, uint64_t first,
                                            uint64_t count, weir_datatype_t type,
                                            const void* parameters) {
  return guarded([&] {
    WEIR_CHECK_OPTIMIZER(optimizer, "optimizer_set_parameters");
    WEIR_CHECK_GROUP(group, "optimizer_set_parameters");
    WEIR_CHECK_TYPE(type, "optimizer_set_parameters");
    return report(optimizer->optimizer->set_parameters(
        static_cast<uint32_t>(group), first, count, static_cast<weir::DataType>(type), parameters));
  });
}

weir_result_t weir_optimizer_get_parameters(weir_optimizer_t optimizer, int group, uint64_t first,
                                            uint64_t count, weir_datatype_t type,
                                            void* parameters) {
  return guarded([&] {
    WEIR_CHECK_OPTIMIZER(optimizer, "optimizer_get_parameters");
    WEIR_CHECK_GROUP(group, "optimizer_get_parameters");
    WEIR_CHECK_TYPE(type, "optimizer_get_parameters");
    return report(optimizer->optimizer->get_parameters(
        static_cast<uint32_t>(group), first, count, static_cast<weir::DataType>(type), parameters));
  });
}

weir_result_t weir_optimizer_gradient(weir_optimizer_t optimizer, int group, uint64_t first,
                                      uint64_t count, weir_datatype_t type, const void* gradient) {
  return guarded([&] {
    WEIR_CHECK_OPTIMIZER(optimizer, "optimizer_gradient");
    WEIR_CHECK_GROUP(group, "optimizer_gradient");
    WEIR_CHECK_TYPE(type, "optimizer_gradient");
    return report(optimizer->optimizer->gradient(static_cast<uint32_t>(group), first, count,
                                                 static_cast<weir::DataType>(type), gradient));
  });
}

weir_result_t weir_optimizer_accumulate(weir_optimizer_t optimizer, int group, uint64_t first,
                                        uint64_t count, weir_datatype_t type,
                                        const void* gradient) {
  return guarded([&] {
    WEIR_CHECK_OPTIMIZER(optimizer, "optimizer_accumulate");
    WEIR_CHECK_GROUP(group, "optimizer_accumulate");
    WEIR_CHECK_TYPE(type, "optimizer_accumulate");
    return report(optimizer->optimizer->accumulate(static_cast<uint32_t>(group), first, count,
                                                   static_cast<weir::DataType>(type), gradient));
  });
}

weir_result_t weir_optimizer_set_output(weir_optimizer_t optimizer, int group, weir_datatype_t type,
                                        void* output, int stochastic) {
  return guarded([&] {
    WEIR_CHECK_OPTIMIZER(optimizer, "optimizer_set_output");
    WEIR_CHECK_GROUP(group, "optimizer_set_output");
    WEIR_CHECK_TYPE(type, "optimizer_set_output");
    return report(optimizer->optimizer->set_output(
        static_cast<uint32_t>(group), static_cast<weir::DataType>(type), output, stochastic != 0));
  });
}

weir_result_t weir_optimizer_set_hyper(weir_optimizer_t optimizer, int group,
                                       const weir_hyper_t* hyper) {
  return guarded([&] {
    WEIR_CHECK_OPTIMIZER(optimizer, "optimizer_set_hyper");
    WEIR_CHECK_GROUP(group, "optimizer_set_hyper");
    WEIR_CHECK_NOT_NULL(hyper, "optimizer_set_hyper");
    return report(optimizer->optimizer->set_hyper(static_cast<uint32_t>(group),
                                                  weir::api::read_hyper(*hyper)));
  });
}

weir_result_t weir_optimizer_gradient_stats(weir_optimizer_t optimizer,
                                            double* sum_of_squares_of_scaled_gradients,
                                            int* all_finite) {
  return guarded([&] {
    WEIR_CHECK_OPTIMIZER(optimizer, "optimizer_gradient_stats");
    WEIR_CHECK_NOT_NULL(sum_of_squares_of_scaled_gradients, "optimizer_gradient_stats");
    WEIR_CHECK_NOT_NULL(all_finite, "optimizer_gradient_stats");
    bool finite = false;
    const Status status =
        optimizer->optimizer->gradient_stats(sum_of_squares_of_scaled_gradients, &finite);
    *all_finite = finite ? 1 : 0;
    return report(status);
  });
}

weir_result_t weir_optimizer_step(weir_optimizer_t optimizer, const weir_step_options_t* options,
                                  weir_step_report_t* out) {
  return guarded([&] {
    WEIR_CHECK_OPTIMIZER(optimizer, "optimizer_step");
    if (Status status = weir::api::check_report(out); !status.ok())
      return report(status.with_context("optimizer_step"));
    const auto read = weir::api::read_step_options(options);
    if (!read.ok()) return report(read.status().with_context("optimizer_step"));
    weir::offload::StepReport made;
    const Status status = optimizer->optimizer->step(read.value(), &made);
    weir::api::write_report(made, out);
    return report(status);
  });
}

weir_result_t weir_optimizer_step_start(weir_optimizer_t optimizer,
                                        const weir_step_options_t* options) {
  return guarded([&] {
    WEIR_CHECK_OPTIMIZER(optimizer, "optimizer_step_start");
    const auto read = weir::api::read_step_options(options);
    if (!read.ok()) return report(read.status().with_context("optimizer_step_start"));
    return report(optimizer->optimizer->step_start(read.value()));
  });
}

weir_result_t weir_optimizer_wait(weir_optimizer_t optimizer, int group, uint64_t first,
                                  uint64_t count) {
  return guarded([&] {
    WEIR_CHECK_OPTIMIZER(optimizer, "optimizer_wait");
    WEIR_CHECK_GROUP(group, "optimizer_wait");
    return report(optimizer->optimizer->wait(static_cast<uint32_t>(group), first, count));
  });
}

weir_result_t weir_optimizer_step_finish(weir_optimizer_t optimizer, weir_step_report_t* out) {
  return guarded([&] {
    WEIR_CHECK_OPTIMIZER(optimizer, "optimizer_step_finish");
    if (Status status = weir::api::check_report(out); !status.ok())
      return report(status.with_context("optimizer_step_finish"));
    weir::offload::StepReport made;
    const Status status = optimizer->optimizer->step_finish(&made);
    weir::api::write_report(made, out);
    return report(status);
  });
}

weir_result_t weir_optimizer_accept(weir_optimizer_t optimizer) {
  return guarded([&] {
    WEIR_CHECK_OPTIMIZER(optimizer, "optimizer_accept");
    return report(optimizer->optimizer->accept());
  });
}

weir_result_t weir_optimizer_undo(weir_optimizer_t optimizer) {
  return guarded([&] {
    WEIR_CHECK_OPTIMIZER(optimizer, "optimizer_undo");
    return report(optimizer->optimizer->undo());
  });
}

weir_result_t weir_optimizer_commit(weir_optimizer_t optimizer) {
  return guarded([&] {
    WEIR_CHECK_OPTIMIZER(optimizer, "optimizer_commit");
    return report(optimizer->optimizer->commit());
  });
}

weir_result_t weir_optimizer_committed_step(weir_optimizer_t optimizer, uint64_t* step) {
  return guarded([&] {
    WEIR_CHECK_OPTIMIZER(optimizer, "optimizer_committed_step");
    WEIR_CHECK_NOT_NULL(step, "optimizer_committed_step");
    return report(optimizer->optimizer->committed_step(step));
  });
}

weir_result_t weir_optimizer_peers_committed(weir_optimizer_t optimizer, uint64_t step) {
  return guarded([&] {
    WEIR_CHECK_OPTIMIZER(optimizer, "optimizer_peers_committed");
    return report(optimizer->optimizer->peers_committed(step));
  });
}

weir_result_t weir_optimizer_roll_back(weir_optimizer_t optimizer, uint64_t step) {
  return guarded([&] {
    WEIR_CHECK_OPTIMIZER(optimizer, "optimizer_roll_back");
    return report(optimizer->optimizer->roll_back(step));
  });
}

weir_result_t weir_optimizer_checkpoint(weir_optimizer_t optimizer, const char* const* directories,
                                        int directory_count) {
  return guarded([&] {
    WEIR_CHECK_OPTIMIZER(optimizer, "optimizer_checkpoint");
    const auto paths = weir::api::read_paths(directories, directory_count, "directories");
    if (!paths.ok()) return report(paths.status().with_context("optimizer_checkpoint"));
    return report(optimizer->optimizer->checkpoint(paths.value()));
  });
}

weir_result_t weir_optimizer_store_report(weir_optimizer_t optimizer, weir_store_report_t* out) {
  return guarded([&] {
    WEIR_CHECK_OPTIMIZER(optimizer, "optimizer_store_report");
    WEIR_CHECK_NOT_NULL(out, "optimizer_store_report");
    if (Status status = weir::api::check_report(out); !status.ok())
      return report(status.with_context("optimizer_store_report"));
    weir::offload::StoreReport made;
    const Status status = optimizer->optimizer->store_report(&made);
    if (status.ok()) weir::api::write_report(made, out);
    return report(status);
  });
}

weir_result_t weir_optimizer_memory(weir_optimizer_t optimizer, uint64_t* bytes) {
  return guarded([&] {
    WEIR_CHECK_OPTIMIZER(optimizer, "optimizer_memory");
    WEIR_CHECK_NOT_NULL(bytes, "optimizer_memory");
    return report(optimizer->optimizer->memory_bytes(bytes));
  });
}

namespace {
struct Description {
  std::string text;
};
}  // namespace

const char* weir_optimizer_describe(weir_optimizer_t optimizer) {
  try {
    std::string& held = weir::PerThread<Description>::get().text;
    if (optimizer == nullptr || optimizer->mark != kOptimizerMark || !optimizer->maker.is_this()) {
      return "";
    }
    held = optimizer->optimizer->describe();
    return held.c_str();
  } catch (...) {
    return "";
  }
}
