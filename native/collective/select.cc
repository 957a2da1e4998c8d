#include "collective/select.h"

namespace farandole {

Choice select_algorithm(int members, int mapped) {
  if (mapped == members) return {Algorithm::shared_memory, "all members are on one host and map each other's memory"};
  return {Algorithm::peer_to_peer, std::to_string(members - mapped) + " of " + std::to_string(members) + " members cannot share memory with this rank"};
}

}  // namespace farandole
