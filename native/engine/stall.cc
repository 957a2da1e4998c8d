#include "engine/stall.h"

#include <algorithm>

namespace farandole {

StallReport find_stalled(Ledger& ledger, const ProcessSets& sets, const std::vector<std::string>& hosts, double now, const StallLimits& limits) {
  StallReport report;
  for (auto it = ledger.pending.begin(); it != ledger.pending.end();) {
    Pending& p = it->second;
    double waited = now - p.first;
    bool over = limits.limit_s > 0 && waited > limits.limit_s;
    bool warn = limits.warning_s > 0 && now - std::max(p.first, p.warned) > limits.warning_s;
    if (!over && !warn) {
      ++it;
      continue;
    }
    std::string have, lack;
    std::vector<int> late;
    for (int r : sets.at(it->first.first)) {
      if (auto j = ledger.joined.find(it->first.first); j != ledger.joined.end() && std::count(j->second.begin(), j->second.end(), r)) continue;
      bool here = p.by_rank.count(r) > 0;
      std::string& list = here ? have : lack;
      list += (list.empty() ? "" : ", ") + std::to_string(r);
      if (here) continue;
      list += " (" + hosts[static_cast<size_t>(r)] + ")";
      late.push_back(r);
    }
    const Request& request = p.by_rank.begin()->second.request;
    std::string sentence = std::string(name_of(request.kind)) + " '" + request.name + "' has waited " + std::to_string(static_cast<int>(waited)) +
                           " s: submitted by rank " + have + ", not yet by rank " + lack;
    if (over) {
      report.failed.push_back({it->first.first, it->first.second, {}, {Code::stall, sentence + "; the limit is FARANDOLE_STALL_LIMIT_SECONDS", late}});
      it = ledger.pending.erase(it);
    } else {
      report.warnings.push_back(sentence);
      p.warned = now;
      ++it;
    }
  }
  return report;
}

}  // namespace farandole
