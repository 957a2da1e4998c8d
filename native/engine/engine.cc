#include "engine/engine.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/wire.h"
#include "kernels/kernels.h"

namespace farandole {
namespace {

enum Frame : uint8_t { frame_announce = 1, frame_plan, frame_abort, frame_goodbye };

struct FrameHead {
  uint32_t bytes;
  uint32_t epoch;
  uint8_t type;
  uint8_t unused[7];
};
static_assert(sizeof(FrameHead) == 16);
constexpr uint32_t largest_frame = 256u << 20;

std::string encode(const Request& r, std::string_view payload) {
  Writer w;
  w.put(r.process_set);
  w.put(r.kind);
  w.put(r.op);
  w.put(r.dtype);
  w.put(r.root);
  w.put(r.prescale);
  w.put(r.postscale);
  w.put_text(r.name);
  w.put_list(r.shape);
  w.put_list(r.splits);
  w.put_text(r.refusal);
  w.put_text(payload);
  return w.take();
}

Announcement decode_announcement(std::string_view body) {
  Reader r(body);
  Announcement a;
  Request& q = a.request;
  q.process_set = r.get<uint32_t>();
  q.kind = r.get<Kind>();
  q.op = r.get<ReduceOp>();
  q.dtype = r.get<Dtype>();
  q.root = r.get<int32_t>();
  q.prescale = r.get<double>();
  q.postscale = r.get<double>();
  q.name = r.get_text();
  q.shape = r.get_list();
  q.splits = r.get_list();
  q.refusal = r.get_text();
  a.payload = r.get_text();
  return a;
}

std::string quoted(const Request& r) { return std::string(name_of(r.kind)) + " '" + r.name + "'"; }

}  // namespace

Engine::Engine(std::unique_ptr<Mesh> mesh, const EngineOptions& options)
    : mesh_(std::move(mesh)), options_(options), backend_(*mesh_), trace_(options.trace_events),
      inbox_(static_cast<size_t>(mesh_->size)), outbox_(static_cast<size_t>(mesh_->size)) {
  std::vector<int>& world = sets_[0];
  for (int r = 0; r < mesh_->size; ++r) world.push_back(r);
  mesh_->service = [this] {
    serve_control();
    if (coordinator()) decide();
  };
  thread_ = std::thread(&Engine::run, this);
}

Engine::~Engine() { shutdown(1); }

// ---- callers ----------------------------------------------------------------------------------------------------------------

void Engine::submit(std::vector<Operation> operations, bool sync) {
  {
    std::lock_guard lock(queue_mutex_);
    if (!stopping_) {
      for (Operation& o : operations) submitted_.push_back(std::move(o));
      submitted_count_ = submitted_.size();
      operations.clear();
    }
  }
  for (Operation& o : operations) o.handle->complete({Code::shutdown, quoted(o.request) + ": this world was shut down", {mesh_->rank}});
  if (!sync) ring();
}

// Wakes the engine's thread if it sleeps. The queue's lock keeps shutdown from closing the bell meanwhile.
void Engine::ring() {
  std::lock_guard lock(queue_mutex_);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // pairs with Mesh::announce_sleep
  if (!stopping_ && mesh_->asleep()) mesh_->wake();
}

bool Engine::wait(const std::shared_ptr<Handle>& handle, double timeout_s, const std::function<bool()>& interrupted) {
  if (handle->done()) return true;
  auto now = Clock::now();
  auto deadline = now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(timeout_s, 1e8)));
  if (std::unique_lock drive(drive_, std::try_to_lock); drive.owns_lock() && !stopping_) {
    driven_ = true;
    mesh_->announce_awake();
    mesh_->interrupted = interrupted;
    auto spin_until = now + std::chrono::microseconds(mesh_->spin_us());
    for (int i = 1; !handle->done(); ++i) {
      bool moved = progress();
      if (moved && !handle->done()) spin_until = Clock::now() + std::chrono::microseconds(mesh_->spin_us());
      if (i % 16 == 0 && Clock::now() > std::min(spin_until, deadline)) break;
      if (!moved) mesh_->spin_once();
    }
    mesh_->interrupted = [] { return false; };
    leave_drive(drive);
  } else {
    ring();
  }
  while (!handle->wait_for(std::chrono::milliseconds(100))) {
    if (Clock::now() > deadline) return false;
    if (interrupted()) return false;
  }
  return true;
}

// The engine's thread takes over from a caller without missing anything: from announce_sleep on, peers ring, and what came before
// is seen by the last round.
void Engine::leave_drive(std::unique_lock<std::mutex>& drive) {
  driven_ = false;
  mesh_->announce_sleep();
  // There may be more to do, or a stall to watch for.
  if (progress() || (coordinator() && !ledger_.pending.empty())) mesh_->wake();
  drive.unlock();
}

void Engine::abort(const std::string& reason) {
  std::lock_guard drive(drive_);
  if (!broken_.ok() || stopping_) return;
  fail_all({Code::peer_lost, mesh_->describe(mesh_->rank) + " failed: " + reason, {mesh_->rank}});
}

void Engine::shutdown(double timeout_s) {
  auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s));
  {
    std::unique_lock drive(drive_, std::try_to_lock);
    while (!drive.owns_lock()) {  // someone drives, perhaps in a transfer whose other side does not answer
      if (Clock::now() > deadline) mesh_->give_up = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      (void)drive.try_lock();
    }
    {
      std::lock_guard lock(queue_mutex_);
      if (stopping_) return;
      stopping_ = true;
    }
    progress();
    broadcast_frame(frame_goodbye, mesh_->describe(mesh_->rank) + " has shut down");
    fail_all({Code::shutdown, "this world was shut down", {mesh_->rank}});
    auto unsent = [&] { return std::any_of(outbox_.begin(), outbox_.end(), [](const std::string& s) { return !s.empty(); }); };
    while (unsent() && Clock::now() < deadline) {
      for (int peer = 0; peer < mesh_->size; ++peer) flush(peer);
      mesh_->spin_once();
    }
  }
  mesh_->wake();
  if (thread_.joinable()) thread_.join();
  std::scoped_lock both(drive_, queue_mutex_);
  mesh_->close();
}

std::vector<std::pair<int, std::string>> Engine::links() {
  std::lock_guard drive(drive_);
  std::vector<std::pair<int, std::string>> v;
  for (int peer = 0; peer < mesh_->size; ++peer)
    if (mesh_->linked(peer)) v.emplace_back(peer, mesh_->link(peer).transport());
  return v;
}

Counters Engine::counters() {
  std::lock_guard drive(drive_);
  return trace_.counters;
}

std::vector<Event> Engine::trace() {
  std::lock_guard drive(drive_);
  return trace_.last();
}

// ---- the drive --------------------------------------------------------------------------------------------------------------

void Engine::run() {
  std::unique_lock drive(drive_);
  while (!stopping_) {
    mesh_->announce_awake();
    mesh_->serve_wakeups();
    while (progress()) {
    }
    mesh_->announce_sleep();
    if (progress()) continue;
    int timeout_ms = coordinator() && !ledger_.pending.empty() ? 1000 : -1;
    drive.unlock();
    do mesh_->sleep_idle(timeout_ms);
    while (driven_ && timeout_ms < 0 && !stopping_);
    drive.lock();
  }
}

bool Engine::progress() {
  bool moved = take_submissions();
  try {
    moved |= serve_control();
    if (coordinator()) {
      decide();
      check_stalls();
      decide();
    }
    moved |= run_plans();
    // Without the coordinator nothing more can be agreed; what it decided before has run.
    if (!coordinator() && !inbox_[0].goodbye.empty() && plans_.empty())
      fail_all({Code::shutdown, inbox_[0].goodbye + ", and nothing can be agreed without it", {0}});
  } catch (const Failure& f) {
    fail_all(f.status);
  } catch (const std::exception& e) {
    fail_all({Code::internal, std::string("the engine of ") + mesh_->describe(mesh_->rank) + " failed: " + e.what(), {mesh_->rank}});
  }
  return moved;
}

bool Engine::take_submissions() {
  if (submitted_count_.load(std::memory_order_acquire) == 0) return false;
  std::deque<Operation> taken;
  {
    std::lock_guard lock(queue_mutex_);
    taken.swap(submitted_);
    submitted_count_ = 0;
  }
  for (Operation& o : taken) accept(std::move(o));
  return true;
}

void Engine::accept(Operation o) {
  Request& r = o.request;
  trace_.add(Phase::submit, static_cast<uint8_t>(r.kind), r.name, r.bytes(), 0);
  if (!broken_.ok()) return finish(o, broken_);
  auto set = sets_.find(r.process_set);
  if (set == sets_.end() || !std::count(set->second.begin(), set->second.end(), mesh_->rank))
    return finish(o, {Code::invalid, quoted(r) + ": this rank is not a member of process set " + std::to_string(r.process_set), {mesh_->rank}});
  auto key = std::make_pair(r.process_set, r.name);
  if (in_flight_.count(key))
    return finish(o, {Code::invalid, quoted(r) + ": a request with this name is still in flight; wait for it or choose another name", {mesh_->rank}});

  // What the kernels cannot do is refused before anyone waits for it.
  if (r.refusal.empty() && (r.kind == Kind::allreduce || r.kind == Kind::reducescatter)) {
    if (const char* why = kernels::why_not(r.dtype, r.op)) r.refusal = why;
    if (r.kind == Kind::reducescatter && r.op == ReduceOp::adasum) r.refusal = "reducescatter has no Adasum";
  }
  Announcement a{r, {}, seconds()};
  if (carries_payload(r, mesh_->rank, options_.small_bytes)) a.payload.assign(static_cast<const char*>(o.input), r.bytes());
  if (r.kind == Kind::join) joined_.insert(r.process_set);
  in_flight_.emplace(key, std::move(o));
  if (coordinator()) return hear(0, std::move(a));
  send_frame(0, frame_announce, encode(a.request, a.payload));
}

bool Engine::serve_control() {
  bool moved = false;
  for (int peer = 0; peer < mesh_->size; ++peer) {
    if (!mesh_->linked(peer)) continue;
    Link& link = mesh_->link(peer);
    Inbox& in = inbox_[static_cast<size_t>(peer)];
    flush(peer);
    try {
      char piece[16 << 10];
      while (size_t n = link.try_recv(Stream::control, piece, sizeof piece)) {
        moved = true;
        in.bytes.append(piece, n);
        size_t at = 0;
        FrameHead head;
        while (in.bytes.size() - at >= sizeof head) {
          std::memcpy(&head, in.bytes.data() + at, sizeof head);
          if (head.bytes > largest_frame) throw Failure({Code::internal, mesh_->describe(peer) + " sent a frame of impossible size", {peer}});
          if (in.bytes.size() - at < sizeof head + head.bytes) break;
          std::string_view body(in.bytes.data() + at + sizeof head, head.bytes);
          if (head.epoch == static_cast<uint32_t>(options_.epoch)) handle_frame(peer, head.type, body);
          at += sizeof head + head.bytes;
        }
        in.bytes.erase(0, at);
      }
    } catch (const LinkLost& lost) {
      if (in.goodbye.empty() && broken_.ok()) throw Failure(loss(lost, ""));  // else it left politely, or the first cause is known
    }
  }
  return moved;
}

void Engine::handle_frame(int peer, uint8_t type, std::string_view body) {
  switch (type) {
    case frame_announce: {
      Announcement a = decode_announcement(body);
      a.time = seconds();
      if (sets_.count(a.request.process_set)) hear(peer, std::move(a));
      break;
    }
    case frame_plan:
      plans_.push_back(decode_plan(body));
      break;
    case frame_abort: {
      Reader r(body);
      auto code = r.get<Code>();
      std::vector<int> ranks;
      for (int64_t v : r.get_list()) ranks.push_back(static_cast<int>(v));
      if (broken_.ok()) throw Failure({code, r.get_text(), ranks});
      break;
    }
    case frame_goodbye:
      inbox_[static_cast<size_t>(peer)].goodbye = std::string(body);
      if (coordinator())
        for (Agreement& a : depart(ledger_, sets_, peer, std::string(body))) agreements_.push_back(std::move(a));
      break;
    default:
      throw Failure({Code::internal, mesh_->describe(peer) + " sent an unknown frame; do all ranks run the same version?", {peer}});
  }
}

// ---- the coordinator --------------------------------------------------------------------------------------------------------

void Engine::hear(int rank, Announcement a) {
  for (Agreement& agreed : announce(ledger_, sets_, rank, std::move(a))) agreements_.push_back(std::move(agreed));
}

void Engine::decide() {
  if (agreements_.empty()) return;
  std::vector<Decision> decisions = make_plans(std::move(agreements_), sets_, {options_.fusion_bytes}, next_sequence_);
  agreements_.clear();
  for (Decision& d : decisions) {
    const std::vector<int>& members = sets_.at(d.plan.process_set);
    // A member may use the new set before this rank has run the plan, so it is known here from now on.
    if (d.plan.kind == Kind::process_set && d.plan.status.ok()) {
      const std::vector<int64_t>& ranks = in_flight_.at({d.plan.process_set, d.plan.entries[0].name}).request.shape;
      sets_[next_set_].assign(ranks.begin(), ranks.end());
      d.plan.entries[0].rows = {next_set_++};
    }
    std::string common;
    if (d.per_member.empty()) common = encode(d.plan, d.plan.entries);
    for (size_t i = 0; i < members.size(); ++i) {
      if (ledger_.departed.count(members[i])) continue;
      if (members[i] != 0) send_frame(members[i], frame_plan, d.per_member.empty() ? common : encode(d.plan, d.per_member[i]));
      else if (!d.per_member.empty()) d.plan.entries = d.per_member[i];
    }
    if (members[0] == 0) plans_.push_back(std::move(d.plan));
  }
}

void Engine::check_stalls() {
  if (ledger_.pending.empty() || !broken_.ok()) return;
  double now = seconds();
  if (now < next_stall_check_) return;
  next_stall_check_ = now + 0.25;
  std::vector<std::string> hosts;
  for (int r = 0; r < mesh_->size; ++r) hosts.push_back(mesh_->host(r));
  StallReport report = find_stalled(ledger_, sets_, hosts, now, options_.stall);
  for (const std::string& w : report.warnings) std::fprintf(stderr, "farandole: warning: %s\n", w.c_str());
  for (Agreement& a : report.failed) agreements_.push_back(std::move(a));
}

// ---- plans ------------------------------------------------------------------------------------------------------------------

bool Engine::run_plans() {
  bool moved = false;
  while (!plans_.empty() && broken_.ok()) {
    Plan plan = std::move(plans_.front());
    plans_.pop_front();
    run_plan(plan);
    moved = true;
  }
  return moved;
}

void Engine::run_plan(const Plan& plan) {
  std::vector<Operation*> operations;
  std::deque<Operation> zeros;  // what this rank contributes after join() to allreduces of the others
  uint64_t bytes = 0;
  for (const Entry& e : plan.entries) {
    auto it = in_flight_.find({plan.process_set, e.name});
    if (it == in_flight_.end()) {
      if (!plan.status.ok()) return;  // a failure this rank had no part in
      if (plan.kind == Kind::allreduce && joined_.count(plan.process_set)) {
        if (plan.small) return;
        zeros.push_back(zero_contribution(plan, e));
        operations.push_back(&zeros.back());
        continue;
      }
      throw Failure({Code::internal, "a plan names '" + e.name + "', which this rank has not submitted", {mesh_->rank}});
    }
    operations.push_back(&it->second);
    bytes += it->second.request.bytes();
  }
  auto kind = static_cast<uint8_t>(plan.kind);
  const std::string first = plan.entries[0].name;
  if (plan.status.ok()) {
    trace_.add(Phase::run, kind, first, bytes, plan.sequence);
    auto start = Clock::now();
    double limit = options_.stall.limit_s > 0 ? options_.stall.limit_s : 1e8;
    try {
      backend_.run(plan, sets_.at(plan.process_set), operations, start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit)));
    } catch (const LinkLost& lost) {
      serve_control();  // throws the first cause, where that has been told and this is a consequence
      throw Failure(loss(lost, " during " + quoted(operations[0]->request)));
    }
    Counters& n = trace_.counters;
    n.run_ns += static_cast<uint64_t>((Clock::now() - start).count());
    n.plans += 1;
    n.operations += operations.size();
    n.bytes += bytes;
    n.small += plan.small;
    if (operations.size() > 1) n.fused += operations.size();
    if (plan.kind == Kind::join) {
      operations[0]->handle->shape = plan.entries[0].rows;
      joined_.erase(plan.process_set);
    }
    if (plan.kind == Kind::process_set) {
      int64_t id = plan.entries[0].rows[0];
      const std::vector<int64_t>& ranks = operations[0]->request.shape;
      sets_[static_cast<uint32_t>(id)].assign(ranks.begin(), ranks.end());
      operations[0]->handle->shape = {id};
    }
  }
  trace_.add(plan.status.ok() ? Phase::done : Phase::fail, kind, first, bytes, plan.sequence);
  for (const Entry& e : plan.entries) {
    auto it = in_flight_.find({plan.process_set, e.name});
    if (it == in_flight_.end()) continue;  // a zero contribution
    finish(it->second, plan.status);
    in_flight_.erase(it);
  }
}

Status Engine::loss(const LinkLost& lost, const std::string& during) const {
  int peer = lost.status.ranks[0];
  const std::string& goodbye = inbox_[static_cast<size_t>(peer)].goodbye;
  if (!goodbye.empty()) return {Code::shutdown, goodbye + during, {peer}};
  return {Code::peer_lost, "lost " + mesh_->describe(peer) + during + ": " + lost.status.message, {peer}};
}

Operation Engine::zero_contribution(const Plan& plan, const Entry& entry) {
  Operation o;
  o.request.name = entry.name;
  o.request.dtype = plan.dtype;
  o.request.shape = {entry.elements};
  size_t bytes = std::max<size_t>(o.request.bytes(), 1);
  o.owned = std::shared_ptr<char>(static_cast<char*>(std::calloc(bytes, 1)), std::free);
  if (!o.owned) throw Failure({Code::internal, "no memory for " + std::to_string(bytes) + " bytes of zeros after join()", {mesh_->rank}});
  o.input = o.output = o.owned.get();
  return o;
}

void Engine::finish(Operation& o, const Status& status) {
  if (!status.ok()) ++trace_.counters.failed;
  o.handle->complete(status);
}

void Engine::fail_all(const Status& status) {
  if (!broken_.ok()) return;
  // What is decided and needs no peer any more still ends as decided, here as on the other ranks.
  for (const Plan& plan : std::exchange(plans_, {}))
    if (plan.small || !plan.status.ok()) run_plan(plan);
  broken_ = status;
  if (status.code != Code::shutdown) {  // a world that ends politely lets peers finish what was decided
    Writer w;
    w.put(status.code);
    w.put_list({status.ranks.begin(), status.ranks.end()});
    w.put_text(status.message);
    broadcast_frame(frame_abort, w.take());
  }
  take_submissions();
  for (auto& [key, o] : in_flight_) finish(o, {status.code, quoted(o.request) + ": " + status.message, status.ranks});
  in_flight_.clear();
  plans_.clear();
  ledger_.pending.clear();
  agreements_.clear();
}

// ---- frames out -------------------------------------------------------------------------------------------------------------

void Engine::broadcast_frame(uint8_t type, const std::string& body) {
  for (int peer = 0; peer < mesh_->size; ++peer)
    if (mesh_->linked(peer)) send_frame(peer, type, body);
}

void Engine::send_frame(int peer, uint8_t type, const std::string& body) {
  FrameHead head{static_cast<uint32_t>(body.size()), static_cast<uint32_t>(options_.epoch), type, {}};
  std::string& out = outbox_[static_cast<size_t>(peer)];
  out.append(reinterpret_cast<const char*>(&head), sizeof head);
  out.append(body);
  flush(peer);
}

void Engine::flush(int peer) {
  std::string& out = outbox_[static_cast<size_t>(peer)];
  if (out.empty()) return;
  try {
    size_t sent = 0;
    while (size_t n = mesh_->link(peer).try_send(Stream::control, out.data() + sent, out.size() - sent)) sent += n;
    out.erase(0, sent);
  } catch (const Failure&) {
    out.clear();  // the peer is gone; serve_control says so once its last words are read
  }
}

}  // namespace farandole
