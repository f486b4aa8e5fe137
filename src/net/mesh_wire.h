// SPDX-License-Identifier: Apache-2.0
// The bytes of a control mesh (control_mesh.h), and nothing about sockets. Integers are
// little-endian. Pure functions; thread-safe.
//
// A connection belongs to one pair of ranks; who has the higher rank connects. First the two ends
// prove themselves, then each tells its card, then as many notices and words as it likes, and at its
// end its goodbye:
//
//   guest (higher rank)             host (lower rank)
//   kHello      ->                                  guest's nonce
//                               <-  kChallenge      host's nonce
//   kProof      ->                                  who, to whom, guest's proof
//                               <-  kWelcome        host's proof
//                               <-  kRefused        instead of kChallenge or kWelcome: reason,
//                                                   version; the connection ends
//   kCard       ->              <-  kCard           sealed; how to reach the sender
//   kNotice     ->              <-  kNotice         what the sender shows now; takes the place of the
//                                                   one before
//   kWord       ->              <-  kWord           sealed; one of a sequence, each heard once
//   kGoodbye    ->              <-  kGoodbye        sealed; the sender ends in order
//
// Each frame starts with 16 bytes:
//
//   offset  bytes  field
//        0      4  magic "WEIM"
//        4      2  protocol version
//        6      2  kind
//        8      4  payload bytes
//       12      4  zero
//
//   payload      offset  bytes  field
//   kHello            0     32  nonce
//   kChallenge        0     32  nonce
//   kProof            0      4  rank of the guest
//                     4      4  rank of the host, as the guest believes
//                     8      4  rank count
//                    12      4  zero
//                    16     32  proof, role "guest"
//   kWelcome          0     32  proof, role "host"
//   kRefused          0      4  reason
//                     4      4  protocol version of the host
//   kCard             0     32  seal
//                    32      n  card, n at most kCardBytesMax
//   kGoodbye          0     32  seal
//                    32      n  farewell, n at most kFarewellBytesMax
//   kNotice           0      4  number: 0, 1, 2, … on this connection in this direction
//                     4      n  notice, n at most kNoticeBytesMax
//   kWord             0     32  seal
//                    32      4  number: 0, 1, 2, … on this connection in this direction
//                    36      n  word, n at most kWordBytesMax
//
// With K = HMAC-SHA256(secret, "weir mesh " + the mesh's purpose), a proof is HMAC-SHA256 with the
// key K over
//
//        0      8  "weirmesh"
//        8      2  protocol version
//       10      2  role: 1 guest, 2 host
//       12      8  communicator
//       20     32  guest's nonce
//       52     32  host's nonce
//       84      4  rank of the guest
//       88      4  rank of the host
//       92      4  rank count
//
// The session key of a role is the same with "weirsess" in the first 8 bytes, and a seal is
// HMAC-SHA256 with the sender's session key over 2 bytes of kind and what follows the seal. The role
// keeps a proof from being reflected, the nonces keep it from being replayed, the host's rank keeps
// a connection that went astray from being taken for another one. Notices are not sealed, as messages
// are not: a seal would cost an allocation each, and who can write into a proven connection can end it.
//
// What a rank tells the others of itself, outside of any connection:
//
//   offset  bytes  field
//        0      4  magic "WEMA"
//        4      2  protocol version
//        6      1  number of offers, 1 to kOffersMax
//        7      1  TlsMode (tls.h)
//        8      4  rank
//       12     24  identity of the host: kernel and network namespace; zero when unknown
//       36     25  for each offer:
//                    0   1  family: 4 or 6
//                    1   1  flags: 1 loopback, 2 asked for by name
//                    2   2  port
//                    4   4  speed of the interface, Mbit/s; 0 when unknown
//                    8   1  bits of the subnet's prefix
//                    9  16  address, network order
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "net/auth.h"
#include "net/interfaces.h"
#include "net/tls.h"

namespace weir::net::mesh {

inline constexpr uint16_t kProtocolVersion = 3;
inline constexpr size_t kHeaderBytes = 16;
inline constexpr size_t kNonceBytes = 32;
inline constexpr size_t kCardBytesMax = 65536;
inline constexpr size_t kFarewellBytesMax = 256;
inline constexpr size_t kNoticeBytesMax = 1024;
inline constexpr size_t kNoticeFrameBytesMax = kHeaderBytes + 4 + kNoticeBytesMax;
inline constexpr size_t kWordBytesMax = 1024;
inline constexpr size_t kWordCountMax = 16;  // that have come and were not heard
inline constexpr size_t kOffersMax = 8;
inline constexpr size_t kAddressBytesMax = 256;

enum class Kind : uint16_t {
  kHello = 1,
  kChallenge = 2,
  kProof = 3,
  kWelcome = 4,
  kRefused = 5,
  kCard = 6,
  kGoodbye = 7,
  kNotice = 8,
  kWord = 9,
};
enum class Role : uint16_t { kGuest = 1, kHost = 2 };
enum class Refusal : uint32_t { kVersion = 1, kProof = 2 };

using Nonce = std::array<unsigned char, kNonceBytes>;
using Bytes = std::vector<unsigned char>;

struct Header {
  uint16_t version = kProtocolVersion;
  Kind kind = Kind::kHello;
  uint32_t payload_bytes = 0;
};

// What a proof is about.
struct Claim {
  uint64_t comm_id = 0;
  Nonce guest_nonce{};
  Nonce host_nonce{};
  uint32_t guest = 0;
  uint32_t host = 0;
  uint32_t rank_count = 0;
};

enum class Judgement { kGood, kOtherVersion, kMalformed };
// Judges the first 16 bytes of a frame: also whether its kind may have a payload of that size.
Judgement decode_header(const unsigned char* bytes, Header* header);

Mac mesh_key(const void* secret, size_t secret_bytes, const std::string& purpose);
Mac prove(const Mac& key, Role role, const Claim& claim);
Mac session_key(const Mac& key, Role role, const Claim& claim);
Mac seal(const Mac& session_key, Kind kind, const unsigned char* data, size_t bytes);

// Frames, appended to `out`.
void put_nonce(Bytes* out, Kind kind, const Nonce& nonce);
void put_proof(Bytes* out, const Claim& claim, const Mac& proof);
void put_welcome(Bytes* out, const Mac& proof);
void put_refused(Bytes* out, Refusal reason);
// kCard, kGoodbye, or kWord, whose data begins with its number.
void put_sealed(Bytes* out, Kind kind, const Mac& session_key, const unsigned char* data,
                size_t bytes);
void put_notice(Bytes* out, uint32_t number, const unsigned char* notice, size_t bytes);
void put_word(Bytes* out, uint32_t number, const Mac& session_key, const unsigned char* word,
              size_t bytes);

// Each takes a payload of the size that its kind has.
Nonce get_nonce(const unsigned char* payload);
Mac get_proof(const unsigned char* payload, Claim* claim);
Mac get_mac(const unsigned char* payload);
// Of a notice; of a word, behind its seal.
uint32_t get_number(const unsigned char* payload);
void get_refused(const unsigned char* payload, uint32_t* reason, uint32_t* version);

struct Offer {
  IpAddress address;
  uint16_t port = 0;
  uint32_t speed_mbits = 0;
  uint32_t prefix_bits = 0;
  bool is_loopback = false;
  bool is_asked_for = false;
};

struct Address {
  uint32_t rank = 0;
  TlsMode tls = TlsMode::kOff;
  HostIdentity host;
  std::vector<Offer> offers;
};

// Writes at most kAddressBytesMax bytes and returns how many.
size_t encode(const Address& address, unsigned char* out);
// False: these bytes are no address of this version, or not that of a listener.
bool decode(const unsigned char* bytes, size_t byte_count, Address* address);

}  // namespace weir::net::mesh
