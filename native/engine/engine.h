// Request -> agreement -> plan -> run -> completion. This file and engine.cc hold threads and frames; every decision is made in
// negotiate, plan and stall.
//
// One lock, the drive, guards all state but the queue of submissions. Two kinds of threads take it: the engine's own thread, which
// sleeps until a peer or a caller rings, and a caller in a synchronous operation, which drives the engine itself for as long as it
// would spin anyway and so saves two wake-ups (20-50 us each on a virtual machine).
#pragma once
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "backend/host.h"
#include "engine/negotiate.h"
#include "engine/plan.h"
#include "engine/stall.h"
#include "trace/ring.h"
#include "transport/mesh.h"

namespace farandole {

struct EngineOptions {
  uint64_t epoch = 0;
  size_t fusion_bytes = 64 << 20, small_bytes = 4096, trace_events = 4096;
  StallLimits stall{60, 600};
};

class Engine {
 public:
  Engine(std::unique_ptr<Mesh> mesh, const EngineOptions& options);
  ~Engine();

  // Any thread. sync: the caller will wait() at once; the engine's thread is not woken.
  void submit(std::vector<Operation> operations, bool sync);

  // Until done or the time is over; drives the engine while it spins. interrupted is asked about ten times a second.
  bool wait(const std::shared_ptr<Handle>& handle, double timeout_s, const std::function<bool()>& interrupted);

  // This rank failed: every peer's pending and later operations fail with the reason. The world is over.
  void abort(const std::string& reason);
  // Says goodbye, ends what is pending, joins the thread. Idempotent.
  void shutdown(double timeout_s);

  std::shared_ptr<char> allocate(size_t bytes) { return mesh_->arena().allocate(bytes); }
  std::vector<std::pair<int, std::string>> links();
  Counters counters();
  std::vector<Event> trace();

 private:
  struct Inbox {
    std::string bytes;
    std::string goodbye;  // the sentence it left with
  };

  void ring();
  void run();                      // the engine's thread
  bool progress();                 // one round of everything; true when something moved. Throws nothing
  bool take_submissions();
  void accept(Operation o);        // a local request joins those in flight, and is announced
  bool serve_control();            // frames in and out; also called while a plan waits. Throws Failure when a peer is lost
  void flush(int peer);
  void handle_frame(int peer, uint8_t type, std::string_view body);
  void hear(int rank, Announcement a);   // coordinator
  void decide();                         // coordinator: agreements become plans, sent to the members
  bool run_plans();
  void run_plan(const Plan& plan);
  Operation zero_contribution(const Plan& plan, const Entry& entry);
  void finish(Operation& o, const Status& status);
  void fail_all(const Status& status);   // the world is over for this rank
  void broadcast_frame(uint8_t type, const std::string& body);
  void send_frame(int peer, uint8_t type, const std::string& body);
  Status loss(const LinkLost& lost, const std::string& during) const;
  void check_stalls();
  void leave_drive(std::unique_lock<std::mutex>& drive);
  bool coordinator() const { return mesh_->rank == 0; }
  static double seconds() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

  std::unique_ptr<Mesh> mesh_;
  EngineOptions options_;
  HostBackend backend_;
  Trace trace_;

  std::mutex queue_mutex_;
  std::deque<Operation> submitted_;
  std::atomic<size_t> submitted_count_{0};

  std::mutex drive_;
  std::atomic<bool> driven_{false};   // a caller drives: the engine's thread need not
  std::atomic<bool> stopping_{false};
  std::map<std::pair<uint32_t, std::string>, Operation> in_flight_;
  ProcessSets sets_;
  std::set<uint32_t> joined_;         // sets in which this rank has no more data
  std::deque<Plan> plans_;
  std::vector<Inbox> inbox_;
  std::vector<std::string> outbox_;   // by peer: frames the link has not taken yet
  Status broken_;                     // not ok: the first cause; later operations end with it

  Ledger ledger_;                     // coordinator only, as all that follows but the thread
  std::vector<Agreement> agreements_;
  uint64_t next_sequence_ = 1;
  uint32_t next_set_ = 1;
  double next_stall_check_ = 0;

  std::thread thread_;
};

}  // namespace farandole
