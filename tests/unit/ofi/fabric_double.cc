// SPDX-License-Identifier: Apache-2.0
#include "unit/ofi/fabric_double.h"

#include <dlfcn.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <stdio.h>
#include <stdlib.h>

#include <map>
#include <mutex>

namespace {

FabricDouble state;

template <typename Function>
Function real(const char* name, const char* version, Function) {
  static void* const library = dlopen(WEIR_TEST_REAL_LIBFABRIC, RTLD_NOW | RTLD_LOCAL);
  void* symbol = library != nullptr ? dlvsym(library, name, version) : nullptr;
  if (symbol == nullptr) {
    fprintf(stderr, "there is no %s of %s\n", name, WEIR_TEST_REAL_LIBFABRIC);
    abort();
  }
  return reinterpret_cast<Function>(symbol);
}
#define REAL(name, version) \
  static const auto call = real(#name, version, static_cast<decltype(&name)>(nullptr))

// Memory of devices that is registered, by what messages name it with.
std::map<const fid_mr*, const fi_ops*> regions;

// The real tables, and copies of them with functions of this file.
struct Tables {
  fi_ops_fabric* fabric = nullptr;
  fi_ops_domain* domain = nullptr;
  fi_ops_mr* memory = nullptr;
  fi_ops_tagged* tagged = nullptr;
  fi_ops_fabric own_fabric;
  fi_ops_domain own_domain;
  fi_ops_mr own_memory;
  fi_ops_tagged own_tagged;
  fi_ops own_region;
} tables;

// What only this library grants is hidden from the real one while it lives.
class Hidden {
 public:
  explicit Hidden(fi_info* info)
      : info_(info), caps_(info->caps), mr_mode_(info->domain_attr->mr_mode) {
    info->caps &= ~FI_HMEM;
    info->domain_attr->mr_mode &= ~FI_MR_HMEM;
  }
  ~Hidden() {
    info_->caps = caps_;
    info_->domain_attr->mr_mode = mr_mode_;
  }

 private:
  fi_info* info_;
  uint64_t caps_;
  int mr_mode_;
};

int close_region(fid* fid) {
  const auto found = regions.find(reinterpret_cast<fid_mr*>(fid));
  fid->ops = const_cast<fi_ops*>(found->second);
  regions.erase(found);
  ++state.closed_count;
  return fid->ops->close(fid);
}

int register_attr(fid* fid, const fi_mr_attr* attr, uint64_t flags, fid_mr** region) {
  if (attr->iface != FI_HMEM_CUDA) return tables.memory->regattr(fid, attr, flags, region);
  if (!state.registers) return -FI_ENOSYS;
  state.device = attr->device.cuda;
  void* alias = state.alias_of(attr->mr_iov->iov_base);
  if (alias == nullptr) return -FI_EFAULT;
  ++state.registered_count;
  const iovec memory = {alias, attr->mr_iov->iov_len};
  fi_mr_attr hidden = *attr;
  hidden.mr_iov = &memory;
  hidden.iface = FI_HMEM_SYSTEM;
  hidden.device.reserved = 0;
  const int error = tables.memory->regattr(fid, &hidden, flags, region);
  if (error != 0) return error;
  regions[*region] = (*region)->fid.ops;
  tables.own_region = *(*region)->fid.ops;
  tables.own_region.close = close_region;
  (*region)->fid.ops = &tables.own_region;
  if ((*region)->mem_desc == nullptr) (*region)->mem_desc = *region;
  return 0;
}

// `descriptor`: what the real library is to have of it.
const void* translate(const void* data, void** descriptor, int* count) {
  void* alias = state.alias_of != nullptr ? state.alias_of(data) : nullptr;
  if (alias == nullptr) return data;
  for (const auto& [region, ops] : regions) {
    if (region->mem_desc != *descriptor) continue;
    if (*descriptor == region) *descriptor = nullptr;
    ++*count;
    return alias;
  }
  return data;  // not registered: nobody can read it
}

ssize_t send_tagged(fid_ep* endpoint, const void* data, size_t bytes, void* descriptor,
                    fi_addr_t peer, uint64_t tag, void* context) {
  data = translate(data, &descriptor, &state.sent_count);
  return tables.tagged->send(endpoint, data, bytes, descriptor, peer, tag, context);
}

ssize_t receive_tagged(fid_ep* endpoint, void* data, size_t bytes, void* descriptor, fi_addr_t peer,
                       uint64_t tag, uint64_t ignore, void* context) {
  data = const_cast<void*>(translate(data, &descriptor, &state.received_count));
  return tables.tagged->recv(endpoint, data, bytes, descriptor, peer, tag, ignore, context);
}

// `*table` becomes one with functions of this library; what it was is kept. All objects of a
// provider have the same table, which others may be using.
template <typename Table, typename Change>
void stand_before(Table** table, Table** kept, Table* own, const Change& change) {
  static std::mutex making;
  const std::lock_guard lock(making);
  if (*kept != *table) {
    *kept = *table;
    *own = **table;
    change(own);
  }
  *table = own;
}

int open_endpoint(fid_domain* domain, fi_info* info, fid_ep** endpoint, void* context) {
  const Hidden hidden(info);
  const int error = tables.domain->endpoint(domain, info, endpoint, context);
  if (error != 0) return error;
  stand_before(&(*endpoint)->tagged, &tables.tagged, &tables.own_tagged, [](fi_ops_tagged* own) {
    own->send = send_tagged;
    own->recv = receive_tagged;
  });
  return 0;
}

int open_domain(fid_fabric* fabric, fi_info* info, fid_domain** domain, void* context) {
  const Hidden hidden(info);
  const int error = tables.fabric->domain(fabric, info, domain, context);
  if (error != 0) return error;
  stand_before(&(*domain)->ops, &tables.domain, &tables.own_domain,
               [](fi_ops_domain* own) { own->endpoint = open_endpoint; });
  stand_before(&(*domain)->mr, &tables.memory, &tables.own_memory,
               [](fi_ops_mr* own) { own->regattr = register_attr; });
  return 0;
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED FabricDouble* fabric_double() { return &state; }

EXPORTED int fi_getinfo(uint32_t version, const char* node, const char* service, uint64_t flags,
                        const fi_info* hints, fi_info** info) {
  REAL(fi_getinfo, "FABRIC_1.3");
  if (hints == nullptr || (hints->caps & FI_HMEM) == 0) {
    return call(version, node, service, flags, hints, info);
  }
  ++state.asked_count;
  if (!state.grants || FI_VERSION_LT(version, FI_VERSION(1, 10))) return -FI_ENODATA;
  const Hidden hidden(const_cast<fi_info*>(hints));
  const int error = call(version, node, service, flags, hints, info);
  for (fi_info* one = error == 0 ? *info : nullptr; one != nullptr; one = one->next) {
    one->caps |= FI_HMEM;
    one->domain_attr->mr_mode |= FI_MR_HMEM;
  }
  return error;
}

EXPORTED void fi_freeinfo(fi_info* info) {
  REAL(fi_freeinfo, "FABRIC_1.3");
  call(info);
}

EXPORTED fi_info* fi_dupinfo(const fi_info* info) {
  REAL(fi_dupinfo, "FABRIC_1.3");
  return call(info);
}

EXPORTED int fi_fabric(fi_fabric_attr* attr, fid_fabric** fabric, void* context) {
  REAL(fi_fabric, "FABRIC_1.1");
  const int error = call(attr, fabric, context);
  if (error != 0) return error;
  stand_before(&(*fabric)->ops, &tables.fabric, &tables.own_fabric,
               [](fi_ops_fabric* own) { own->domain = open_domain; });
  return 0;
}

EXPORTED const char* fi_strerror(int number) {
  REAL(fi_strerror, "FABRIC_1.0");
  return call(number);
}

EXPORTED uint32_t fi_version(void) {
  REAL(fi_version, "FABRIC_1.0");
  return call();
}
