// Which family of algorithms runs a collective, and why. Pure.
#pragma once
#include <string>

namespace farandole {

enum class Algorithm : unsigned char { shared_memory, peer_to_peer };

struct Choice {
  Algorithm algorithm;
  std::string reason;
};

// members: how many take part; mapped: how many of them, this rank included, have arenas that this rank maps.
// All members see the same answer: on one host everyone maps everyone.
Choice select_algorithm(int members, int mapped);

}  // namespace farandole
