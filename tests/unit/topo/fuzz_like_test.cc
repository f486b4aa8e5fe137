// SPDX-License-Identifier: Apache-2.0
// Damaged files: whatever comes, the answer is a topology that can be used or an error with a text.
#include <algorithm>
#include <cstdlib>
#include <random>

#include "core/topo/hwloc_xml.h"
#include "core/topo/merge.h"
#include "core/topo/print.h"
#include "core/topo/svg.h"
#include "unit/topo/topo_support.h"

namespace weir::topo {
namespace {

uint64_t seed() {
  const char* text = std::getenv("WEIR_TEST_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 0) : std::random_device{}();
}

// Bytes that mean something in these files are likelier to get far.
char some_byte(std::mt19937_64& random) {
  static constexpr char kBytes[] = "<>/=\"' 0123456789abcdefx.:,-&#;\n\t";
  if (random() % 8 == 0) return static_cast<char>(random());
  return kBytes[random() % (sizeof kBytes - 1)];
}

void damage(std::string* text, std::mt19937_64& random) {
  const size_t count = 1 + random() % 4;
  for (size_t i = 0; i < count && !text->empty(); ++i) {
    const size_t at = random() % text->size();
    const size_t length = std::min<size_t>(random() % 64, text->size() - at);
    switch (random() % 5) {
      case 0:
        (*text)[at] = some_byte(random);
        break;
      case 1:
        text->erase(at, length);
        break;
      case 2:
        text->insert(at, text->substr(random() % text->size(), random() % 200));
        break;
      case 3:
        text->insert(at, 1 + random() % 3, some_byte(random));
        break;
      default: {  // another number
        const size_t digit = text->find_first_of("0123456789", at);
        if (digit != std::string::npos) text->replace(digit, 1, std::to_string(random()));
      }
    }
  }
}

TEST(DamagedFiles, GiveATopologyThatWorksOrAnErrorWithAText) {
  const uint64_t start = seed();
  SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(start));
  std::mt19937_64 random(start);
  size_t accepted = 0;
  size_t refused = 0;
  for (const char* name : kFixtures) {
    const std::string whole = text_of(fixture_path(name));
    const Topology sound = fixture(name);
    const bool hwloc = std::string(name).find("hwloc") != std::string::npos;
    for (int round = 0; round < 400; ++round) {
      std::string text = whole;
      damage(&text, random);
      const Result<Topology> topology =
          hwloc ? parse_hwloc_xml(text, "f.xml") : parse_nccl_xml(text, "f.xml");
      if (!topology.ok()) {
        ++refused;
        ASSERT_TRUE(topology.status().text().starts_with("f.xml")) << topology.status().text();
        continue;
      }
      ++accepted;
      if (round % 8 != 0) continue;
      EXPECT_FALSE(print_tree(topology.value()).empty());
      EXPECT_FALSE(print_matrix(topology.value()).empty());
      EXPECT_FALSE(to_json(topology.value()).empty());
      EXPECT_FALSE(to_svg(topology.value()).empty());
      const Result<Topology> both = merge(topology.value(), sound);
      EXPECT_EQ(both.ok(), both.status().text().empty());
      if (both.ok()) {
        EXPECT_FALSE(print_tree(both.value()).empty());
      }
      const Result<std::string> again = to_nccl_xml(topology.value());
      if (again.ok()) {
        const Result<Topology> twice = parse_nccl_xml(again.value(), "again.xml");
        EXPECT_TRUE(twice.ok()) << twice.status().text() << "\n" << again.value();
      }
    }
  }
  EXPECT_GT(accepted, 50u);
  EXPECT_GT(refused, 50u);
}

}  // namespace
}  // namespace weir::topo
