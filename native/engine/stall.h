// Who is late, and for what. Pure.
#pragma once
#include <string>
#include <vector>

#include "engine/negotiate.h"

namespace farandole {

struct StallLimits {
  double warning_s, limit_s;  // 0: never
};

struct StallReport {
  std::vector<std::string> warnings;
  std::vector<Agreement> failed;  // past the limit; taken out of the ledger
};

// hosts: by rank, for the sentences.
StallReport find_stalled(Ledger& ledger, const ProcessSets& sets, const std::vector<std::string>& hosts, double now, const StallLimits& limits);

}  // namespace farandole
