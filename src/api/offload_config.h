// SPDX-License-Identifier: Apache-2.0
// Converts the structs of weir/offload.h to those of the optimizer. Stateless; thread-safe. Texts
// of errors name field and value.
#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"
#include "offload/optimizer/options.h"
#include "weir/offload.h"

namespace weir::api {

Result<offload::OptimizerOptions> read_offload_config(const weir_offload_config_t* config);
Result<std::vector<offload::ParameterGroup>> read_groups(const weir_parameter_group_t* groups,
                                                         int group_count);
Result<offload::StepOptions> read_step_options(const weir_step_options_t* options);
// `count` names of directories; `what` is the argument's name.
Result<std::vector<std::string>> read_paths(const char* const* paths, int count, const char* what);
offload::Hyper read_hyper(const weir_hyper_t& hyper);
// kInvalidArgument when the report is of another version.
Status check_report(const weir_step_report_t* report);
void write_report(const offload::StepReport& from, weir_step_report_t* to);
Status check_report(const weir_store_report_t* report);
// The texts of `to` live until the calling thread's next call.
void write_report(const offload::StoreReport& from, weir_store_report_t* to);

}  // namespace weir::api
