// SPDX-License-Identifier: Apache-2.0
// The tables and properties lie in memory as NCCL's C structures do. The offsets were counted by
// hand from NCCL's public description of each version, for 64-bit Linux, not taken from our own
// types.
#include <gtest/gtest.h>

#include <cstring>

#include "ncclnet/loaded_plugin.h"
#include "unit/ncclnet/net_end.h"

namespace weir::ncclnet {
namespace {

template <typename Struct, typename Member>
size_t offset_in(const Struct& object, const Member& member) {
  return static_cast<size_t>(reinterpret_cast<const char*>(&member) -
                             reinterpret_cast<const char*>(&object));
}

template <int kVersion>
void expect_common_order() {
  const Table<kVersion> t = {};
  const size_t offsets[] = {offset_in(t, t.name),
                            offset_in(t, t.init),
                            offset_in(t, t.devices),
                            offset_in(t, t.get_properties),
                            offset_in(t, t.listen),
                            offset_in(t, t.connect),
                            offset_in(t, t.accept),
                            offset_in(t, t.register_memory),
                            offset_in(t, t.register_dmabuf),
                            offset_in(t, t.deregister_memory),
                            offset_in(t, t.isend),
                            offset_in(t, t.irecv),
                            offset_in(t, t.iflush),
                            offset_in(t, t.test),
                            offset_in(t, t.close_send),
                            offset_in(t, t.close_recv),
                            offset_in(t, t.close_listen),
                            offset_in(t, t.get_device_memory),
                            offset_in(t, t.irecv_consumed)};
  size_t expected = 0;
  for (const size_t offset : offsets) {
    EXPECT_EQ(offset, expected) << "version " << kVersion;
    expected += 8;
  }
}

TEST(NcclNetAbi, TheFunctionsStandInNcclsOrder) {
  expect_common_order<8>();
  expect_common_order<9>();
  expect_common_order<10>();
  expect_common_order<11>();
  expect_common_order<12>();
  const Table<9> nine = {};
  EXPECT_EQ(offset_in(nine, nine.make_virtual_device), 152u);
  const Table<10> ten = {};
  EXPECT_EQ(offset_in(ten, ten.make_virtual_device), 152u);
  const Table<11> eleven = {};
  EXPECT_EQ(offset_in(eleven, eleven.make_virtual_device), 152u);
  EXPECT_EQ(offset_in(eleven, eleven.finalize), 160u);
  EXPECT_EQ(offset_in(eleven, eleven.set_attributes), 168u);
  const Table<12> twelve = {};
  EXPECT_EQ(offset_in(twelve, twelve.make_virtual_device), 152u);
  EXPECT_EQ(offset_in(twelve, twelve.finalize), 160u);
  EXPECT_EQ(offset_in(twelve, twelve.set_attributes), 168u);
}

TEST(NcclNetAbi, ThePropertiesOfVersion8StandInNcclsOrder) {
  const Properties<8> p = {};
  EXPECT_EQ(offset_in(p, p.name), 0u);
  EXPECT_EQ(offset_in(p, p.pci_path), 8u);
  EXPECT_EQ(offset_in(p, p.guid), 16u);
  EXPECT_EQ(offset_in(p, p.pointer_kinds), 24u);
  EXPECT_EQ(offset_in(p, p.registration_is_global), 28u);
  EXPECT_EQ(offset_in(p, p.speed_mbits), 32u);
  EXPECT_EQ(offset_in(p, p.port), 36u);
  EXPECT_EQ(offset_in(p, p.latency_us), 40u);
  EXPECT_EQ(offset_in(p, p.connection_count_max), 44u);
  EXPECT_EQ(offset_in(p, p.grouped_receives_max), 48u);
  EXPECT_EQ(offset_in(p, p.offload_type), 52u);
  EXPECT_EQ(offset_in(p, p.offload_version), 56u);
}

template <int kVersion>
void expect_properties_from_9_on() {
  const Properties<kVersion> p = {};
  EXPECT_EQ(offset_in(p, p.name), 0u);
  EXPECT_EQ(offset_in(p, p.pci_path), 8u);
  EXPECT_EQ(offset_in(p, p.guid), 16u);
  EXPECT_EQ(offset_in(p, p.pointer_kinds), 24u);
  EXPECT_EQ(offset_in(p, p.registration_is_global), 28u);
  EXPECT_EQ(offset_in(p, p.force_flush), 32u);
  EXPECT_EQ(offset_in(p, p.speed_mbits), 36u);
  EXPECT_EQ(offset_in(p, p.port), 40u);
  EXPECT_EQ(offset_in(p, p.latency_us), 44u);
  EXPECT_EQ(offset_in(p, p.connection_count_max), 48u);
  EXPECT_EQ(offset_in(p, p.grouped_receives_max), 52u);
  EXPECT_EQ(offset_in(p, p.offload_type), 56u);
  EXPECT_EQ(offset_in(p, p.offload_version), 60u);
  EXPECT_EQ(offset_in(p, p.virtual_device.count), 64u);
  EXPECT_EQ(offset_in(p, p.virtual_device.devices[0]), 68u);
  const size_t sizes_at = kVersion >= 12 ? 104 : 88;
  EXPECT_EQ(offset_in(p, p.message_bytes_max), sizes_at);
  EXPECT_EQ(offset_in(p, p.collective_bytes_max), sizes_at + 8);
}

TEST(NcclNetAbi, ThePropertiesFromVersion9OnStandInNcclsOrder) {
  expect_properties_from_9_on<9>();
  expect_properties_from_9_on<10>();
  expect_properties_from_9_on<11>();
  expect_properties_from_9_on<12>();
  const Properties<11> eleven = {};
  EXPECT_EQ(offset_in(eleven, eleven.requests_in_one_max), 104u);
  const Properties<12> twelve = {};
  EXPECT_EQ(offset_in(twelve, twelve.requests_in_one_max), 120u);
  EXPECT_EQ(offset_in(twelve, twelve.rail_id), 124u);
  EXPECT_EQ(offset_in(twelve, twelve.plane_id), 126u);
}

void expect_exact_properties(int version, size_t bytes) {
  std::string reason;
  LoadedPlugin* plugin = open_plugin(WEIR_NET_PLUGIN, version, &reason);
  ASSERT_NE(plugin, nullptr) << reason;
  void* context = nullptr;
  ASSERT_EQ(plugin->init(1, &context), kSuccess) << take_warning();
  unsigned char room[160];
  memset(room, 0x5a, sizeof room);
  using Getter = Result (*)(int, void*);
  Getter getter = nullptr;
  memcpy(&getter, static_cast<const char*>(plugin->table()) + 24, sizeof getter);
  ASSERT_EQ(getter(0, room), kSuccess);
  for (size_t i = bytes; i < sizeof room; ++i) EXPECT_EQ(room[i], 0x5a) << version << " at " << i;
  char* name = nullptr;
  memcpy(&name, room, sizeof name);
  EXPECT_NE(std::string(name), "");
  int pointer_kinds = 0;
  memcpy(&pointer_kinds, room + 24, sizeof pointer_kinds);
  EXPECT_EQ(pointer_kinds, kPointerHost);
  EXPECT_EQ(plugin->finalize(context), kSuccess);
}

TEST(NcclNetAbi, AVersionWritesNoByteBeyondItsProperties) {
  in_child([] {
    expect_exact_properties(8, 64);
    expect_exact_properties(9, 104);
    expect_exact_properties(10, 104);
    expect_exact_properties(11, 112);
    expect_exact_properties(12, 128);
  });
}

}  // namespace
}  // namespace weir::ncclnet
