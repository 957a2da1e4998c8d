// The engine's pure decisions as tables: agreement, plans, stalls.
#include <string>

#include "engine/negotiate.h"
#include "engine/plan.h"
#include "engine/stall.h"
#include "tests/check.h"

using namespace farandole;

namespace {

const ProcessSets sets{{0, {0, 1, 2}}, {1, {1, 2}}};

Request request(const std::string& name, Kind kind = Kind::allreduce) {
  Request r;
  r.name = name;
  r.kind = kind;
  r.shape = {4, 2};
  return r;
}

Announcement said(Request r, double time = 0, std::string payload = "") { return {std::move(r), std::move(payload), time}; }

bool contains(const std::string& s, const char* part) { return s.find(part) != std::string::npos; }

Agreement agree(Ledger& ledger, const std::vector<Request>& by_rank) {
  for (int r = 0; r < 2; ++r) CHECK(announce(ledger, sets, r, said(by_rank[static_cast<size_t>(r)])).empty());
  auto a = announce(ledger, sets, 2, said(by_rank[2]));
  CHECK(a.size() == 1);
  CHECK(ledger.pending.empty());
  return a[0];
}

void agreement_needs_all_members() {
  Ledger ledger;
  Agreement a = agree(ledger, {request("x"), request("x"), request("x")});
  CHECK(a.status.ok() && a.name == "x" && a.members.size() == 3);
  Request in_set = request("x");
  in_set.process_set = 1;
  CHECK(announce(ledger, sets, 2, said(in_set)).empty());
  CHECK(announce(ledger, sets, 1, said(in_set)).size() == 1);  // rank 0 is not a member
}

void mismatches_name_both_ranks_and_values() {
  struct Row {
    const char* what;
    void (*change)(Request&);
    const char* text;
  };
  const Row rows[] = {
      {"dtype", [](Request& r) { r.dtype = Dtype::int8; }, "rank 0 has float32, rank 2 has int8"},
      {"shape", [](Request& r) { r.shape = {4}; }, "rank 0 has (4, 2), rank 2 has (4,)"},
      {"op", [](Request& r) { r.op = ReduceOp::max; }, "rank 0 has sum, rank 2 has max"},
      {"prescale factor", [](Request& r) { r.prescale = 0.5; }, "rank 0 has 1.0, rank 2 has 0.5"},
      {"operation", [](Request& r) { r.kind = Kind::broadcast; }, "rank 0 has allreduce, rank 2 has broadcast"},
  };
  for (const Row& row : rows) {
    Ledger ledger;
    Request odd = request("x");
    row.change(odd);
    Status s = agree(ledger, {request("x"), request("x"), odd}).status;
    CHECK(s.code == Code::mismatch && contains(s.message, row.what) && contains(s.message, row.text) && contains(s.message, "'x'"));
    CHECK((s.ranks == std::vector<int>{0, 2}));
  }
  Ledger ledger;
  Request refused = request("x");
  refused.refusal = "splits are negative";
  Status s = agree(ledger, {request("x"), refused, request("x")}).status;
  CHECK(s.code == Code::mismatch && contains(s.message, "rank 1 refused") && contains(s.message, "splits are negative"));
}

void rows_may_differ_where_they_may() {
  Ledger ledger;
  Request a = request("g", Kind::allgather), b = a;
  b.shape = {0, 2};
  CHECK(agree(ledger, {a, b, a}).status.ok());
  b.shape = {0, 3};
  CHECK(contains(agree(ledger, {a, b, a}).status.message, "rank 0 has (*, 2), rank 1 has (*, 3)"));
}

void departed_ranks_fail_what_needs_them() {
  Ledger ledger;
  CHECK(announce(ledger, sets, 0, said(request("x"))).empty());
  auto failed = depart(ledger, sets, 1, "rank 1 on h has shut down");
  CHECK(failed.size() == 1 && failed[0].status.code == Code::shutdown && contains(failed[0].status.message, "rank 1 on h"));
  auto later = announce(ledger, sets, 2, said(request("y")));
  CHECK(later.size() == 1 && later[0].status.code == Code::shutdown);
}

void joined_ranks_count_as_present() {
  Ledger ledger;
  CHECK(announce(ledger, sets, 0, said(request("x"), 0, "abc")).empty());
  CHECK(announce(ledger, sets, 1, said(request("x"), 0, "abc")).empty());
  auto agreed = announce(ledger, sets, 2, said(request("join", Kind::join)));
  CHECK(agreed.size() == 1 && agreed[0].status.ok() && agreed[0].members.size() == 3);
  CHECK(agreed[0].members[2].payload == std::string(3, '\0'));
  CHECK(announce(ledger, sets, 1, said(request("g", Kind::allgather))).empty());
  agreed = announce(ledger, sets, 0, said(request("g", Kind::allgather)));
  CHECK(agreed.size() == 1 && agreed[0].status.code == Code::mismatch && contains(agreed[0].status.message, "rank 2 has joined"));
  CHECK(announce(ledger, sets, 0, said(request("join", Kind::join))).empty());
  agreed = announce(ledger, sets, 1, said(request("join", Kind::join)));
  CHECK(agreed.size() == 1 && agreed[0].members[0].request.root == 1 && ledger.joined.empty());
}

Agreement ready(const std::string& name, int64_t elements, std::string payload = "") {
  Request r = request(name);
  r.shape = {elements};
  return {0, name, {said(r, 0, payload), said(r, 0, payload), said(r, 0, payload)}, {}};
}

void small_requests_fuse_and_large_ones_do_not() {
  uint64_t next = 7;
  auto d = make_plans({ready("a", 1000), ready("big", 1 << 20), ready("b", 1000), ready("c", 2000)}, sets, {12000}, next);
  CHECK(d.size() == 3 && next == 10);
  CHECK(d[0].plan.entries.size() == 2 && d[0].plan.entries[1].name == "b" && contains(d[0].reason, "fused"));
  CHECK(d[1].plan.entries[0].name == "big" && d[1].plan.sequence == 8);
  CHECK(d[2].plan.entries[0].name == "c");  // 16000 bytes would pass the limit
  CHECK(make_plans({ready("a", 8), ready("b", 8)}, sets, {0}, next).size() == 2);
  Agreement max = ready("m", 1000);
  for (auto& m : max.members) m.request.op = ReduceOp::max;
  CHECK(make_plans({ready("a", 1000), max}, sets, {1 << 20}, next).size() == 2);
}

void average_is_a_factor_and_small_results_are_computed() {
  uint64_t next = 0;
  float in[2] = {3, 6};
  Agreement a = ready("a", 2, std::string(reinterpret_cast<char*>(in), sizeof in));
  for (auto& m : a.members) m.request.op = ReduceOp::average;
  auto d = make_plans({a}, sets, {1 << 20}, next);
  CHECK(d[0].plan.small && d[0].plan.op == ReduceOp::sum && d[0].plan.postscale == 1.0 / 3);
  auto* out = reinterpret_cast<const float*>(d[0].plan.entries[0].result.data());
  CHECK(out[0] > 2.99f && out[0] < 3.01f && out[1] > 5.99f && out[1] < 6.01f);
  Plan back = decode_plan(encode(d[0].plan, d[0].plan.entries));
  CHECK(back.small && back.entries[0].result == d[0].plan.entries[0].result && back.postscale == d[0].plan.postscale);
}

void alltoall_tells_each_member_its_column() {
  Agreement a{0, "s", {}, {}};
  for (int64_t rank = 0; rank < 3; ++rank) {
    Request r = request("s", Kind::alltoall);
    r.splits = {rank, rank + 10, rank + 20};
    a.members.push_back(said(r));
  }
  uint64_t next = 0;
  auto d = make_plans({a}, sets, {0}, next);
  CHECK((d[0].per_member[1][0].rows == std::vector<int64_t>{10, 11, 12}));
}

void stalls_name_the_late() {
  Ledger ledger;
  announce(ledger, sets, 0, said(request("x"), 100));
  announce(ledger, sets, 2, said(request("x"), 101));
  std::vector<std::string> hosts{"a", "b", "c"};
  StallLimits limits{60, 600};
  CHECK(find_stalled(ledger, sets, hosts, 150, limits).warnings.empty());
  auto r = find_stalled(ledger, sets, hosts, 161, limits);
  CHECK(r.warnings.size() == 1 && contains(r.warnings[0], "allreduce 'x' has waited 61 s: submitted by rank 0, 2, not yet by rank 1 (b)"));
  CHECK(find_stalled(ledger, sets, hosts, 162, limits).warnings.empty());  // once a minute
  r = find_stalled(ledger, sets, hosts, 701, limits);
  CHECK(r.failed.size() == 1 && r.failed[0].status.code == Code::stall && r.failed[0].status.ranks == std::vector<int>{1});
  CHECK(ledger.pending.empty());
}

}  // namespace

int main() {
  agreement_needs_all_members();
  mismatches_name_both_ranks_and_values();
  rows_may_differ_where_they_may();
  departed_ranks_fail_what_needs_them();
  joined_ranks_count_as_present();
  small_requests_fuse_and_large_ones_do_not();
  average_is_a_factor_and_small_results_are_computed();
  alltoall_tells_each_member_its_column();
  stalls_name_the_late();
}
