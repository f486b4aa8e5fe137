// SPDX-License-Identifier: Apache-2.0
#include "core/comm/bootstrap_wire.h"

#include <algorithm>
#include <cstring>

#include "core/base/check.h"

namespace weir::comm::wire {
namespace {

constexpr unsigned char kMagic[4] = {'W', 'E', 'I', 'R'};
constexpr std::string_view kProofLabel = "weir bootstrap";
constexpr size_t kDoorBytes = 2 + kPlaceBytesMax;
constexpr size_t kRedirectBytes = 4 + kDoorBytes;

template <typename Integer>
void append_integer(Integer value, std::string* bytes) {
  for (size_t i = 0; i < sizeof(Integer); ++i) {
    bytes->push_back(static_cast<char>((value >> (8 * i)) & 0xff));
  }
}

template <typename Integer>
Integer read_integer(const void* data) {
  const unsigned char* bytes = static_cast<const unsigned char*>(data);
  Integer value = 0;
  for (size_t i = 0; i < sizeof(Integer); ++i) {
    value = static_cast<Integer>(value | static_cast<Integer>(bytes[i]) << (8 * i));
  }
  return value;
}

template <size_t kBytes>
void append_array(const std::array<unsigned char, kBytes>& array, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(array.data()), kBytes);
}

void append_header(Kind kind, size_t payload_bytes, uint32_t round, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(kMagic), sizeof kMagic);
  append_integer(kProtocolVersion, bytes);
  append_integer(static_cast<uint16_t>(kind), bytes);
  append_integer(static_cast<uint32_t>(payload_bytes), bytes);
  append_integer(round, bytes);
}

std::string frame(Kind kind, uint32_t round, std::string_view payload) {
  std::string bytes;
  bytes.reserve(kHeaderBytes + payload.size());
  append_header(kind, payload.size(), round, &bytes);
  bytes.append(payload);
  return bytes;
}

template <size_t kBytes>
std::array<unsigned char, kBytes> read_array(std::string_view payload, size_t offset) {
  WEIR_CHECK(payload.size() >= offset + kBytes, "the size was checked before the frame was read");
  std::array<unsigned char, kBytes> array;
  std::memcpy(array.data(), payload.data() + offset, kBytes);
  return array;
}

}  // namespace

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kHello:
      return "hello";
    case Kind::kChallenge:
      return "challenge";
    case Kind::kProof:
      return "proof";
    case Kind::kWelcome:
      return "welcome";
    case Kind::kTurnedAway:
      return "turned-away";
    case Kind::kReady:
      return "ready";
    case Kind::kGive:
      return "give";
    case Kind::kTake:
      return "take";
    case Kind::kFailure:
      return "failure";
    case Kind::kAdmit:
      return "admit";
    case Kind::kRedirect:
      return "redirect";
    case Kind::kDoor:
      return "door";
    case Kind::kMembers:
      return "members";
  }
  return "unknown";
}

bool decode_header(const unsigned char (&bytes)[kHeaderBytes], Header* header) {
  if (std::memcmp(bytes, kMagic, sizeof kMagic) != 0) return false;
  header->version = read_integer<uint16_t>(bytes + 4);
  header->kind = static_cast<Kind>(read_integer<uint16_t>(bytes + 6));
  header->payload_bytes = read_integer<uint32_t>(bytes + 8);
  header->round = read_integer<uint32_t>(bytes + 12);
  return true;
}

bool header_fits(const Header& header) {
  const size_t bytes = header.payload_bytes;
  const bool is_of_a_round = header.kind == Kind::kGive || header.kind == Kind::kTake;
  // A failure may come in any round.
  if (header.kind != Kind::kFailure && is_of_a_round != (header.round > 0)) return false;
  switch (header.kind) {
    case Kind::kHello:
    case Kind::kChallenge:
      return bytes == kNonceBytes;
    case Kind::kProof:
      return bytes == 16 + kProofBytes;
    case Kind::kWelcome:
      return bytes == 8 + kProofBytes;
    case Kind::kTurnedAway:
      return bytes == 8;
    case Kind::kAdmit:
    case Kind::kReady:
      return bytes == 0;
    case Kind::kRedirect:
      return bytes == kRedirectBytes;
    case Kind::kDoor:
      return bytes == kDoorBytes;
    case Kind::kMembers:
      return bytes > 0 && bytes % kMemberBytes == 0 && bytes / kMemberBytes <= kMembersMax;
    case Kind::kGive:
      return bytes >= 8 + kRecordHeaderBytes && bytes - 8 <= kRecordsBytesMax;
    case Kind::kTake:
      return bytes >= kRecordHeaderBytes && bytes <= kRecordsBytesMax;
    case Kind::kFailure:
      return bytes >= 4 && bytes - 4 <= kFailureTextBytesMax;
  }
  return false;
}

Proof prove(const Secret& secret, const Claim& claim) {
  std::string message(kProofLabel);
  append_integer(kProtocolVersion, &message);
  append_integer(static_cast<uint32_t>(claim.role), &message);
  append_array(claim.guest_nonce, &message);
  append_array(claim.host_nonce, &message);
  append_integer(claim.rank, &message);
  append_integer(claim.rank_count, &message);
  append_integer(claim.patience_us, &message);
  append_integer(claim.host_rank, &message);
  return secret.derive("bootstrap proof").sign(message);
}

Secret frame_key(const Secret& secret, Role role, const Claim& claim) {
  std::string message;
  append_integer(static_cast<uint32_t>(role), &message);
  append_array(claim.guest_nonce, &message);
  append_array(claim.host_nonce, &message);
  return Secret{secret.derive("bootstrap frames").sign(message)};
}

Proof sign_frame(const Secret& key, uint64_t number, std::string_view start,
                 std::string_view rest) {
  std::string message;
  message.reserve(sizeof number + start.size() + rest.size());
  append_integer(number, &message);
  message.append(start);
  message.append(rest);
  return key.sign(message);
}

size_t frame_bytes(std::string_view frames) {
  WEIR_CHECK(frames.size() >= kHeaderBytes, "frames are whole");
  const size_t bytes = kHeaderBytes + read_integer<uint32_t>(frames.data() + 8);
  WEIR_CHECK(frames.size() >= bytes, "frames are whole");
  return bytes;
}

std::string encode_hello(const Nonce& nonce) {
  return frame(Kind::kHello, 0, {reinterpret_cast<const char*>(nonce.data()), nonce.size()});
}

std::string encode_challenge(const Nonce& nonce) {
  return frame(Kind::kChallenge, 0, {reinterpret_cast<const char*>(nonce.data()), nonce.size()});
}

std::string encode_proof(const Secret& secret, const Claim& claim) {
  std::string payload;
  append_integer(claim.rank, &payload);
  append_integer(claim.rank_count, &payload);
  append_integer(claim.patience_us, &payload);
  append_array(prove(secret, claim), &payload);
  return frame(Kind::kProof, 0, payload);
}

std::string encode_welcome(const Secret& secret, const Claim& claim) {
  std::string payload;
  append_integer(claim.rank_count, &payload);
  append_integer(claim.host_rank, &payload);
  append_array(prove(secret, claim), &payload);
  return frame(Kind::kWelcome, 0, payload);
}

std::string encode_turned_away(TurnedAway reason) {
  std::string payload;
  append_integer(static_cast<uint32_t>(reason), &payload);
  append_integer(static_cast<uint32_t>(kProtocolVersion), &payload);
  return frame(Kind::kTurnedAway, 0, payload);
}

std::string encode_ready() { return frame(Kind::kReady, 0, {}); }

std::string encode_admit() { return frame(Kind::kAdmit, 0, {}); }

namespace {

// The packed place has room for all addresses it may have.
void append_door(const DoorAddress& address, std::string* payload) {
  append_integer(address.port, payload);
  std::string place = pack(address.place);
  place.resize(kPlaceBytesMax, '\0');
  payload->append(place);
}

bool read_door(std::string_view payload, DoorAddress* address) {
  address->port = read_integer<uint16_t>(payload.data());
  return unpack(payload.substr(2), &address->place);
}

}  // namespace

std::string encode_redirect(const DoorAddress& address) {
  std::string payload;
  append_integer(address.rank, &payload);
  append_door(address, &payload);
  return frame(Kind::kRedirect, 0, payload);
}

std::string encode_door(const DoorAddress& address) {
  std::string payload;
  append_door(address, &payload);
  return frame(Kind::kDoor, 0, payload);
}

std::string encode_members(const Member* members, size_t count) {
  WEIR_CHECK(count > 0 && count <= kMembersMax, "the caller divides them");
  std::string payload;
  for (size_t i = 0; i < count; ++i) {
    append_integer(members[i].rank, &payload);
    append_integer(members[i].rank_count, &payload);
    append_integer(static_cast<uint64_t>(members[i].pid), &payload);
    append_integer(members[i].patience_us, &payload);
  }
  return frame(Kind::kMembers, 0, payload);
}

void append_record(Rank rank, std::string_view blob, std::string* records) {
  WEIR_CHECK(blob.size() <= kBlobBytesMax, "all_gather refuses larger blobs");
  append_integer(rank, records);
  append_integer(static_cast<uint32_t>(blob.size()), records);
  records->append(blob);
}

std::string encode_give(uint32_t round, uint64_t patience_us, std::string_view records) {
  std::string bytes;
  bytes.reserve(kHeaderBytes + 8 + records.size());
  append_header(Kind::kGive, 8 + records.size(), round, &bytes);
  append_integer(patience_us, &bytes);
  bytes.append(records);
  return bytes;
}

std::string encode_take(uint32_t round, std::string_view records) {
  return frame(Kind::kTake, round, records);
}

std::string encode_failure(uint32_t round, const Status& status) {
  std::string payload;
  append_integer(static_cast<uint32_t>(status.code()), &payload);
  payload.append(std::string_view(status.text()).substr(0, kFailureTextBytesMax));
  return frame(Kind::kFailure, round, payload);
}

Nonce decode_nonce(std::string_view payload) { return read_array<kNonceBytes>(payload, 0); }

Proof decode_proof(std::string_view payload, Claim* claim) {
  WEIR_CHECK(payload.size() == 16 + kProofBytes, "checked before the frame was read");
  claim->rank = read_integer<uint32_t>(payload.data());
  claim->rank_count = read_integer<uint32_t>(payload.data() + 4);
  claim->patience_us = read_integer<uint64_t>(payload.data() + 8);
  return read_array<kProofBytes>(payload, 16);
}

Proof decode_welcome(std::string_view payload, Rank* rank_count, Rank* host_rank) {
  WEIR_CHECK(payload.size() == 8 + kProofBytes, "checked before the frame was read");
  *rank_count = read_integer<uint32_t>(payload.data());
  *host_rank = read_integer<uint32_t>(payload.data() + 4);
  return read_array<kProofBytes>(payload, 8);
}

void decode_turned_away(std::string_view payload, uint32_t* reason, uint32_t* version) {
  WEIR_CHECK(payload.size() == 8, "checked before the frame was read");
  *reason = read_integer<uint32_t>(payload.data());
  *version = read_integer<uint32_t>(payload.data() + 4);
}

std::string_view decode_give(std::string_view payload, uint64_t* patience_us) {
  WEIR_CHECK(payload.size() >= 8, "checked before the frame was read");
  *patience_us = read_integer<uint64_t>(payload.data());
  return payload.substr(8);
}

bool decode_redirect(std::string_view payload, DoorAddress* address) {
  WEIR_CHECK(payload.size() == kRedirectBytes, "checked before the frame was read");
  address->rank = read_integer<uint32_t>(payload.data());
  return read_door(payload.substr(4), address);
}

bool decode_door(std::string_view payload, DoorAddress* address) {
  WEIR_CHECK(payload.size() == kDoorBytes, "checked before the frame was read");
  return read_door(payload, address);
}

std::vector<Member> decode_members(std::string_view payload) {
  WEIR_CHECK(payload.size() % kMemberBytes == 0, "checked before the frame was read");
  std::vector<Member> members;
  for (; !payload.empty(); payload.remove_prefix(kMemberBytes)) {
    Member member;
    member.rank = read_integer<uint32_t>(payload.data());
    member.rank_count = read_integer<uint32_t>(payload.data() + 4);
    member.pid = static_cast<int64_t>(read_integer<uint64_t>(payload.data() + 8));
    member.patience_us = read_integer<uint64_t>(payload.data() + 16);
    members.push_back(member);
  }
  return members;
}

bool take_record(std::string_view* records, Rank* rank, std::string_view* blob) {
  if (records->size() < kRecordHeaderBytes) return false;
  *rank = read_integer<uint32_t>(records->data());
  const size_t bytes = read_integer<uint32_t>(records->data() + 4);
  if (bytes > kBlobBytesMax || bytes > records->size() - kRecordHeaderBytes) return false;
  *blob = records->substr(kRecordHeaderBytes, bytes);
  records->remove_prefix(kRecordHeaderBytes + bytes);
  return true;
}

Status decode_failure(std::string_view payload) {
  WEIR_CHECK(payload.size() >= 4, "checked before the frame was read");
  const uint32_t number = read_integer<uint32_t>(payload.data());
  const bool is_error = number > static_cast<uint32_t>(Code::kInProgress) &&
                        number <= static_cast<uint32_t>(Code::kInternal);
  std::string text(payload.substr(4));
  // UTF-8 passes; control characters, which could redraw a terminal, do not.
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return Status(is_error ? static_cast<Code>(number) : Code::kInternal, std::move(text));
}

}  // namespace weir::comm::wire
