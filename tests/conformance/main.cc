// SPDX-License-Identifier: Apache-2.0
// Makes one test of every property that a transport's capabilities ask for, for every transport
// that the registry knows, with ranks as threads and as processes, bare and with hooks around it. A
// new transport needs no edit here.
#include <gtest/gtest.h>
#include <stdio.h>

#include <memory>

#include "conformance/harness.h"
#include "conformance/two_hosts.h"
#include "core/plugin/registry.h"

namespace weir::conformance {
namespace {

class PropertyTest : public testing::Test {
 public:
  PropertyTest(const Property* property, const Variant* variant)
      : property_(property), variant_(variant) {}
  void TestBody() override { property_->run(*variant_); }

 private:
  const Property* property_;
  const Variant* variant_;
};

// A check that is not about a property's run.
class SimpleTest : public testing::Test {
 public:
  explicit SimpleTest(std::function<void()> body) : body_(std::move(body)) {}
  void TestBody() override { body_(); }

 private:
  std::function<void()> body_;
};

void add_simple(const std::string& suite, const char* name, const std::function<void()>& body) {
  testing::RegisterTest(suite.c_str(), name, nullptr, nullptr, __FILE__, __LINE__,
                        [body]() -> testing::Test* { return new SimpleTest(body); });
}

std::vector<const Property*> all_properties() {
  std::vector<const Property*> all;
  for (const auto* list : {&message_properties(), &memory_properties(), &membership_properties(),
                           &quiesce_properties(), &remote_properties(), &remote_end_properties(),
                           &whole_properties(), &device_properties(), &one_sided_properties()}) {
    for (const Property& property : *list) all.push_back(&property);
  }
  return all;
}

void add_variant(const Variant* variant) {
  for (const Property* property : all_properties()) {
    if (!variant->can(property->caps)) continue;
    if (variant->functions->caps.rank_count_max < property->rank_count_min) continue;
    // What carries no messages is joined in another way.
    if (!variant->can(WEIR_CAP_SEND_RECV) && (property->caps & WEIR_CAP_COLLECTIVES) == 0) continue;
    if (property->applies != nullptr && !property->applies(*variant)) continue;
    const std::string suite = property->prefix + variant->name();
    testing::RegisterTest(suite.c_str(), property->name, nullptr, nullptr, __FILE__, __LINE__,
                          [=]() -> testing::Test* { return new PropertyTest(property, variant); });
  }
}

// A capability that is declared but that no property asks for would be a promise that nobody
// checks.
void every_capability_has_a_property(const weir_transport_functions_t* transport) {
  for (uint64_t bit = 1; bit != 0; bit <<= 1) {
    if ((transport->caps.bits & bit) == 0) continue;
    bool tested = false;
    for (const Property* property : all_properties()) {
      tested = tested || ((property->caps & bit) != 0 &&
                          transport->caps.rank_count_max >= property->rank_count_min);
    }
    EXPECT_TRUE(tested) << "no property tests capability " << bit << " of " << transport->name;
  }
}

bool is_network(const weir_transport_functions_t& transport) {
  constexpr uint64_t kBits = WEIR_CAP_SEGMENT | WEIR_CAP_SEND_RECV;
  return (transport.caps.bits & kBits) == WEIR_CAP_SEND_RECV && transport.caps.rank_count_max > 1;
}

// Lives as long as the program, as the tests do that refer to it.
void add_variant(const Variant& variant) {
  static std::vector<std::unique_ptr<Variant>> variants;
  variants.push_back(std::make_unique<Variant>(variant));
  add_variant(variants.back().get());
}

// `transport` inside a hook, or, as "hosts", with shared memory for ranks of one host.
Result<const weir_transport_functions_t*> wrapped_in(const weir_transport_functions_t* transport,
                                                     const std::string& hook) {
  if (hook != "hosts") return plugin::wrap_with_hooks(transport, hook);
  auto local = plugin::find_transport("shm");
  return local.ok() ? plugin::make_hosts(transport, local.value()) : local;
}

// `transport` with tcp behind it, which takes over when it fails. The hook fault is around the
// first of them, check around both.
Result<const weir_transport_functions_t*> with_another(const weir_transport_functions_t* transport,
                                                       const std::string& hook) {
  auto first = plugin::wrap_with_hooks(transport, hook == "fault" ? "fault" : "");
  auto second = plugin::find_transport("tcp");
  if (!first.ok() || !second.ok()) return first.ok() ? second : first;
  auto chain = plugin::make_failover({first.value(), second.value()});
  if (!chain.ok()) return chain;
  return plugin::wrap_with_hooks(chain.value(), hook == "check" ? "check" : "");
}

// Buffers are the caller's again after a failure, whatever lies around the transport.
void what_is_posted_can_be_taken_back(const weir_transport_functions_t* transport) {
  if ((transport->caps.bits & WEIR_CAP_SEND_RECV) == 0 || transport->caps.rank_count_max < 2)
    return;
  for (const std::string hook : {"", "trace", "check", "fault", "sum", "hosts"}) {
    if (hook == "hosts" && !is_network(*transport)) continue;
    auto wrapped = wrapped_in(transport, hook);
    ASSERT_TRUE(wrapped.ok()) << wrapped.status().text();
    EXPECT_NE(wrapped.value()->caps.bits & WEIR_CAP_QUIESCE, 0u) << "hook '" << hook << "'";
  }
}

void add_transport(const plugin::Viability& entry) {
  const std::string name = entry.transport->name;
  if (!entry.viable) {
    const std::string reason = entry.reason;
    add_simple(name, "IsViableHere", [reason] { GTEST_SKIP() << reason; });
    return;
  }
  // What the core would make of it.
  const auto sealed = plugin::sealed_for(getenv("WEIR_TLS"), entry.transport);
  if (!sealed.ok()) {
    const std::string text = sealed.status().text();
    add_simple(name, "CanBeSealed", [text] { FAIL() << text; });
    return;
  }
  const auto* transport = sealed.value();
  add_simple(name, "EveryDeclaredCapabilityHasAProperty",
             [transport] { every_capability_has_a_property(transport); });
  add_simple(name, "WhatIsPostedCanBeTakenBack",
             [transport] { what_is_posted_can_be_taken_back(transport); });
  for (const bool processes : {false, true}) {
    for (const std::string hook : {"", "check", "fault", "sum", "hosts"}) {
      // Beside shared memory, in place of which a network transport is not asked for.
      if (hook == "hosts" && !is_network(*transport)) continue;
      // Hooks are about messages.
      if (!hook.empty() && (transport->caps.bits & WEIR_CAP_SEND_RECV) == 0) continue;
      // What it adds does not depend on where the ranks run.
      if (hook == "sum" && processes) continue;
      auto wrapped = wrapped_in(transport, hook);
      if (!wrapped.ok()) {
        const std::string text = wrapped.status().text();
        add_simple(name, "CanBeWrapped", [text] { FAIL() << text; });
        continue;
      }
      add_variant(Variant{wrapped.value(), name, processes, hook});
      if (hook == "hosts" || hook == "sum" || !is_network(*transport)) continue;
      auto both = with_another(transport, hook);
      if (both.ok()) add_variant(Variant{both.value(), "failover_" + name, processes, hook});
    }
  }
}

}  // namespace
}  // namespace weir::conformance

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  printf("WEIR_TEST_SEED=%llu\n", static_cast<unsigned long long>(weir::conformance::test_seed()));
  weir_host_t host = {sizeof host, nullptr, [](void*, const char*) {},
                      [](void*, int, const char*) {},
                      [](void*, const char* name) -> const char* { return getenv(name); }};
  if (getenv("WEIR_CONFORMANCE_HOSTS") != nullptr) {
    const std::string reason = weir::conformance::two_hosts().make();
    if (!reason.empty()) {
      printf("[  SKIPPED ] ranks on two hosts: %s\n", reason.c_str());
      return 77;
    }
  }
  weir::plugin::load_modules();
  for (const auto& entry : weir::plugin::list_transports(host)) {
    weir::conformance::add_transport(entry);
  }
  return RUN_ALL_TESTS();
}
