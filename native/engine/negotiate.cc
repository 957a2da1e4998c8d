#include "engine/negotiate.h"

#include <algorithm>

namespace farandole {
namespace {

std::string text(const std::vector<int64_t>& v) {
  std::string s = "(";
  for (size_t i = 0; i < v.size(); ++i) s += (i ? ", " : "") + std::to_string(v[i]);
  return s + (v.size() == 1 ? ",)" : ")");
}

std::string text(double v) {
  std::string s = std::to_string(v);
  s.erase(std::max(s.find_last_not_of('0') + 1, s.find('.') + 2));
  return s;
}

// The shape with the first dimension left open, for collectives whose rows may differ.
std::string row_shape(const Request& r) {
  std::string s = "(*";
  for (size_t i = 1; i < r.shape.size(); ++i) s += ", " + std::to_string(r.shape[i]);
  return s + ")";
}

struct Difference {
  const char* what;
  std::string a, b;
};

std::optional<Difference> difference(const Request& a, const Request& b) {
  auto differ = [](const char* what, std::string x, std::string y) -> std::optional<Difference> {
    if (x == y) return std::nullopt;
    return Difference{what, std::move(x), std::move(y)};
  };
  if (auto d = differ("operation", name_of(a.kind), name_of(b.kind))) return d;
  if (a.kind == Kind::barrier) return std::nullopt;
  if (a.kind == Kind::process_set) return differ("ranks", text(a.shape), text(b.shape));
  if (auto d = differ("dtype", info(a.dtype).name, info(b.dtype).name)) return d;
  bool uneven = a.kind == Kind::allgather || a.kind == Kind::alltoall;
  if (auto d = uneven ? differ("shape", row_shape(a), row_shape(b)) : differ("shape", text(a.shape), text(b.shape))) return d;
  if (a.kind == Kind::broadcast) return differ("root", std::to_string(a.root), std::to_string(b.root));
  if (a.kind == Kind::allreduce || a.kind == Kind::reducescatter) {
    if (auto d = differ("op", name_of(a.op), name_of(b.op))) return d;
    if (a.prescale != b.prescale) return Difference{"prescale factor", text(a.prescale), text(b.prescale)};
    if (a.postscale != b.postscale) return Difference{"postscale factor", text(a.postscale), text(b.postscale)};
  }
  return std::nullopt;
}

std::string quoted(const Request& r) { return std::string(name_of(r.kind)) + " '" + r.name + "'"; }

}  // namespace

Status compare(const std::string& name, const std::vector<int>& ranks, const std::vector<Announcement>& members) {
  for (size_t i = 0; i < members.size(); ++i)
    if (const Request& r = members[i].request; !r.refusal.empty())
      return {Code::mismatch, quoted(r) + ": rank " + std::to_string(ranks[i]) + " refused it: " + r.refusal, {ranks[i]}};
  const Request& first = members[0].request;
  for (size_t i = 1; i < members.size(); ++i)
    if (auto d = difference(first, members[i].request))
      return {Code::mismatch,
              std::string(name_of(first.kind)) + " '" + name + "': ranks disagree about the " + d->what + ": rank " +
                  std::to_string(ranks[0]) + " has " + d->a + ", rank " + std::to_string(ranks[i]) + " has " + d->b,
              {ranks[0], ranks[i]}};
  return {};
}

namespace {

bool has_joined(const Ledger& ledger, uint32_t set, int rank) {
  auto it = ledger.joined.find(set);
  return it != ledger.joined.end() && std::count(it->second.begin(), it->second.end(), rank);
}

// The agreement about a pending request once every member has announced it or joined.
std::optional<Agreement> conclude(const Ledger& ledger, const std::vector<int>& ranks, uint32_t set, const std::string& name, const Pending& pending) {
  Agreement agreement{set, name, {}, {}};
  std::vector<int> present;
  std::vector<Announcement> said;
  int joined = -1;
  // Judged only when all have come: a verdict before that would leave the late ones waiting under a forgotten name.
  for (int r : ranks) {
    if (auto it = pending.by_rank.find(r); it != pending.by_rank.end()) {
      present.push_back(r);
      said.push_back(it->second);
    } else if (has_joined(ledger, set, r)) {
      joined = r;
    } else {
      return std::nullopt;
    }
  }
  agreement.status = compare(name, present, said);
  const Request& first = said[0].request;
  if (agreement.status.ok() && joined >= 0 && first.kind != Kind::allreduce)
    agreement.status = {Code::mismatch, quoted(first) + ": rank " + std::to_string(joined) + " has joined, and then only allreduce is possible", {joined}};
  if (!agreement.status.ok()) return agreement;
  size_t next = 0;
  for (int r : ranks) {
    if (pending.by_rank.count(r)) agreement.members.push_back(std::move(said[next++]));
    else agreement.members.push_back({agreement.members.empty() ? pending.by_rank.begin()->second.request : agreement.members[0].request,
                                      std::string(pending.by_rank.begin()->second.payload.size(), '\0'), 0});
  }
  return agreement;
}

}  // namespace

std::vector<Agreement> announce(Ledger& ledger, const ProcessSets& sets, int rank, Announcement a) {
  uint32_t set = a.request.process_set;
  std::string name = a.request.name;
  const std::vector<int>& ranks = sets.at(set);
  for (int r : ranks)
    if (auto gone = ledger.departed.find(r); gone != ledger.departed.end())
      return {{set, name, {}, {Code::shutdown, quoted(a.request) + " cannot complete: " + gone->second, {r}}}};

  if (a.request.kind == Kind::join) {
    std::vector<int>& joined = ledger.joined[set];
    joined.push_back(rank);
    std::vector<Agreement> agreed;
    for (auto it = ledger.pending.begin(); it != ledger.pending.end();) {
      std::optional<Agreement> done;
      if (it->first.first == set) done = conclude(ledger, ranks, set, it->first.second, it->second);
      if (done) agreed.push_back(std::move(*done));
      it = done ? ledger.pending.erase(it) : std::next(it);
    }
    if (joined.size() == ranks.size()) {
      a.request.root = joined.back();
      agreed.push_back({set, name, {std::move(a)}, {}});
      ledger.joined.erase(set);
    }
    return agreed;
  }

  auto key = std::make_pair(set, name);
  Pending& pending = ledger.pending[key];
  if (pending.by_rank.empty()) pending.first = a.time;
  pending.by_rank.insert_or_assign(rank, std::move(a));

  std::optional<Agreement> agreement = conclude(ledger, ranks, set, name, pending);
  if (!agreement) return {};
  ledger.pending.erase(key);
  return {std::move(*agreement)};
}

std::vector<Agreement> depart(Ledger& ledger, const ProcessSets& sets, int rank, const std::string& sentence) {
  ledger.departed[rank] = sentence;
  std::vector<Agreement> failed;
  for (auto it = ledger.joined.begin(); it != ledger.joined.end();) {
    const std::vector<int>& ranks = sets.at(it->first);
    bool needed = std::count(ranks.begin(), ranks.end(), rank) && !std::count(it->second.begin(), it->second.end(), rank);
    if (needed) failed.push_back({it->first, join_name, {}, {Code::shutdown, std::string("join cannot complete: ") + sentence, {rank}}});
    it = needed ? ledger.joined.erase(it) : std::next(it);
  }
  for (auto it = ledger.pending.begin(); it != ledger.pending.end();) {
    const std::vector<int>& ranks = sets.at(it->first.first);
    if (!std::count(ranks.begin(), ranks.end(), rank)) {
      ++it;
      continue;
    }
    const Request& request = it->second.by_rank.begin()->second.request;
    failed.push_back({it->first.first, it->first.second, {}, {Code::shutdown, quoted(request) + " cannot complete: " + sentence, {rank}}});
    it = ledger.pending.erase(it);
  }
  return failed;
}

}  // namespace farandole
