// SPDX-License-Identifier: Apache-2.0
#include "plugins/hook_seal/keys.h"

#include <openssl/crypto.h>

#include <utility>

#include "net/hkdf.h"
#include "net/openssl_at_exit.h"

namespace weir::plugins::hook_seal {
namespace {

constexpr char kSalt[] = "weir seal 1";

void append(uint64_t value, size_t bytes, std::string* text) {
  for (size_t i = 0; i < bytes; ++i) text->push_back(static_cast<char>(value >> (8 * i)));
}

void append(const PublicKey& key, std::string* text) {
  text->append(reinterpret_cast<const char*>(key.data()), key.size());
}

}  // namespace

Keys::~Keys() {
  EVP_PKEY_free(pair_);
  OPENSSL_cleanse(secret_.data(), secret_.size());
  for (Shared& one : shared_) OPENSSL_cleanse(one.bytes.data(), one.bytes.size());
}

bool Keys::open(const unsigned char* secret, size_t secret_bytes, uint64_t comm_id, uint32_t rank,
                const std::string& transport) {
  secret_.assign(secret, secret + secret_bytes);
  comm_id_ = comm_id;
  rank_ = rank;
  transport_ = transport;
  net::keep_openssl_at_exit();
  pair_ = EVP_PKEY_Q_keygen(nullptr, nullptr, "X25519");
  size_t bytes = own_.size();
  return pair_ != nullptr && EVP_PKEY_get_raw_public_key(pair_, own_.data(), &bytes) == 1 &&
         bytes == own_.size();
}

void Keys::set_peers(std::vector<PublicKey> peers) {
  peers_ = std::move(peers);
  shared_.resize(peers_.size());
}

bool Keys::agree(uint32_t peer) {
  Shared* shared = &shared_[peer];
  if (shared->is_known) return true;
  EVP_PKEY* other = EVP_PKEY_new_raw_public_key_ex(nullptr, "X25519", nullptr, peers_[peer].data(),
                                                   peers_[peer].size());
  EVP_PKEY_CTX* context = other == nullptr ? nullptr : EVP_PKEY_CTX_new(pair_, nullptr);
  size_t bytes = shared->bytes.size();
  shared->is_known = context != nullptr && EVP_PKEY_derive_init(context) == 1 &&
                     EVP_PKEY_derive_set_peer(context, other) == 1 &&
                     EVP_PKEY_derive(context, shared->bytes.data(), &bytes) == 1 &&
                     bytes == shared->bytes.size();
  EVP_PKEY_CTX_free(context);
  EVP_PKEY_free(other);
  return shared->is_known;
}

bool Keys::traffic_secret(uint32_t peer, uint32_t lane, bool sending, TrafficSecret* secret) {
  if (!agree(peer)) return false;
  std::vector<unsigned char> both;
  both.reserve(secret_.size() + shared_[peer].bytes.size());  // so that no copy stays behind
  both.insert(both.end(), secret_.begin(), secret_.end());
  both.insert(both.end(), shared_[peer].bytes.begin(), shared_[peer].bytes.end());
  const uint32_t sender = sending ? rank_ : peer;
  const uint32_t receiver = sending ? peer : rank_;
  std::string info = "traffic";
  append(comm_id_, 8, &info);
  append(sender, 4, &info);
  append(receiver, 4, &info);
  append(lane, 4, &info);
  append(peers_[sender], &info);
  append(peers_[receiver], &info);
  info += transport_;
  const bool done =
      net::hkdf_sha256(both.data(), both.size(), kSalt, info, secret->data(), secret->size());
  OPENSSL_cleanse(both.data(), both.size());
  return done;
}

}  // namespace weir::plugins::hook_seal
