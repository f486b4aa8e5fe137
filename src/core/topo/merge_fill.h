// SPDX-License-Identifier: Apache-2.0
// The attributes of one part that is both in a topology file and in the machine: the file's come
// first, the machine's fill in what is missing. Internal to core/topo; pure.
#pragma once

#include "core/topo/topology.h"

namespace weir::topo {

CpuInfo filled(const CpuInfo& of_file, const CpuInfo& of_machine);

// PCI numbers, the link above, names, and what is known of a GPU. A device of the file without a
// class is what the machine says it is.
void fill_device(const Node& of_machine, Node* of_file);

void fill_port(const NetPort& of_machine, NetPort* of_file);

// A bandwidth that the file does not state: the machine's for each link if it has the link, else
// that of the generation of the ends, which may now be known.
void fill_link(const Node& a, const Node& b, const Link* of_machine, Link* of_file);

}  // namespace weir::topo
