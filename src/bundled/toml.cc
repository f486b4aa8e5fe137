// SPDX-License-Identifier: Apache-2.0
// What toml++'s headers declare and do not define.
#define TOML_HEADER_ONLY 0
#define TOML_IMPLEMENTATION
#include <toml++/toml.h>
