// How an operation ended, in words that reach the user unchanged.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace farandole {

enum class Code : uint8_t { ok, mismatch, invalid, peer_lost, stall, shutdown, internal };

struct Status {
  Code code = Code::ok;
  std::string message;
  std::vector<int> ranks;  // the ranks that caused it

  bool ok() const { return code == Code::ok; }
};

// Thrown inside the core only; the engine turns it into the Status of every pending operation.
struct Failure : std::runtime_error {
  Status status;
  explicit Failure(Status s) : std::runtime_error(s.message), status(std::move(s)) {}
};

// A link's peer is gone and all it had sent is read; the engine adds who that is and what it was needed for.
struct LinkLost : Failure {
  LinkLost(int peer, const std::string& why) : Failure({Code::peer_lost, why, {peer}}) {}
};

}  // namespace farandole
