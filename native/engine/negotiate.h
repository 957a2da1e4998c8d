// Who has asked for what, and what all agree on. Pure: no clock, no socket, no lock; time comes in as an argument.
// Only the coordinator (rank 0) negotiates, for every process set, so that one order of plans holds on all ranks.
#pragma once
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/request.h"
#include "base/status.h"

namespace farandole {

using ProcessSets = std::map<uint32_t, std::vector<int>>;  // id -> global ranks, ascending; 0 is the world

struct Announcement {
  Request request;
  std::string payload;  // a small message's input rides along; empty: too large, or nothing to send
  double time = 0;      // seconds, when the coordinator heard of it
};

// A request that every member has announced, or that failed.
struct Agreement {
  uint32_t process_set = 0;
  std::string name;
  std::vector<Announcement> members;  // in member order, zeros for joined ones; incomplete when status is not ok
  Status status;
};

struct Pending {
  std::map<int, Announcement> by_rank;
  double first = 0, warned = 0;  // seconds
};

struct Ledger {
  std::map<std::pair<uint32_t, std::string>, Pending> pending;
  std::map<uint32_t, std::vector<int>> joined;  // by set: ranks that have no more data, in the order they said so
  std::map<int, std::string> departed;  // ranks that said goodbye, with the sentence for those that wait for them
};

// Takes one rank's announcement. Returns what is agreed now: the request itself when this was the last member, or cannot succeed; after a
// join, every request that waited for this rank only. Joined ranks count as present; they contribute zeros to allreduces.
std::vector<Agreement> announce(Ledger& ledger, const ProcessSets& sets, int rank, Announcement a);

// A rank leaves: every request that still needs it fails.
std::vector<Agreement> depart(Ledger& ledger, const ProcessSets& sets, int rank, const std::string& sentence);

// Do the members mean the same? The sentence names the request, two ranks and their two values.
Status compare(const std::string& name, const std::vector<int>& ranks, const std::vector<Announcement>& members);

}  // namespace farandole
