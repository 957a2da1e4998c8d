// The Python module _core: the only place that knows Python. Every call that may wait releases the GIL; no thread of the engine
// ever takes it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include "base/dtype.h"
#include "engine/engine.h"
#include "kernels/kernels.h"
#include "transport/ring_link.h"
#include "transport/tcp.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace farandole {
namespace {

using Bytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;

Bytes as_array(std::shared_ptr<char> memory, size_t bytes) {
  char* data = memory.get();
  nb::capsule owner(new std::shared_ptr<char>(std::move(memory)), [](void* p) noexcept { delete static_cast<std::shared_ptr<char>*>(p); });
  return Bytes(data, {bytes}, owner);
}

using PyRequest = std::tuple<int, std::string, uint32_t, int, int, std::vector<int64_t>, int, double, double, std::vector<int64_t>,
                             uintptr_t, uintptr_t, std::string>;

template <class E>
E checked(int code, size_t count, const char* what) {
  if (code < 0 || static_cast<size_t>(code) >= count) throw nb::value_error((std::string("no such ") + what + " code: " + std::to_string(code)).c_str());
  return static_cast<E>(code);
}

Operation operation_of(PyRequest&& t) {
  auto& [kind, name, set, dtype, op, shape, root, pre, post, splits, input, output, refusal] = t;
  Operation o;
  o.request = {std::move(name), set, checked<Kind>(kind, kind_count, "kind"), checked<ReduceOp>(op, op_count, "op"),
               checked<Dtype>(dtype, dtype_count, "dtype"), root, pre, post, std::move(shape), std::move(splits), std::move(refusal)};
  o.input = reinterpret_cast<const void*>(input);
  o.output = reinterpret_cast<void*>(output);
  o.handle = std::make_shared<Handle>();
  return o;
}

// What Python holds: the engine lives on while a handle may still drive it.
struct PyEngine {
  std::shared_ptr<Engine> engine;
  pid_t owner = getpid();

  ~PyEngine() {
    // A forked child has neither the thread nor the right to say goodbye on the parent's sockets: leave everything alone.
    if (owner != getpid()) new std::shared_ptr<Engine>(engine);
    nb::gil_scoped_release release;  // ending an engine joins its thread
    engine.reset();
  }

  Engine& get() const {
    if (owner != getpid())
      throw std::runtime_error("this process was forked from a rank after init(); only the rank itself may use the world (start workers before init, or use spawn)");
    return *engine;
  }
};

struct PyHandle {
  std::shared_ptr<Handle> handle;
  std::shared_ptr<Engine> engine;

  bool wait(double timeout_s) {
    bool signalled = false;
    bool done;
    {
      nb::gil_scoped_release release;
      done = engine->wait(handle, timeout_s, [&] {
        nb::gil_scoped_acquire acquire;
        return signalled = signalled || PyErr_CheckSignals() != 0;
      });
    }
    if (signalled) throw nb::python_error();
    return done;
  }
};

std::vector<PyHandle> submit(PyEngine& e, std::vector<PyRequest> requests, bool sync) {
  Engine& engine = e.get();
  std::vector<Operation> operations;
  std::vector<PyHandle> handles;
  for (PyRequest& r : requests) {
    operations.push_back(operation_of(std::move(r)));
    handles.push_back({operations.back().handle, e.engine});
  }
  nb::gil_scoped_release release;
  engine.submit(std::move(operations), sync);
  return handles;
}

using PyLink = std::tuple<int, std::string, std::vector<int>, int>;

std::unique_ptr<PyEngine> make_engine(int rank, int size, uint64_t epoch, std::vector<std::string> hosts, std::vector<PyLink> links, int arena_fd,
                                      LoopbackHub* hub, size_t fusion_bytes, size_t small_bytes, int spin_us, double stall_warning_s,
                                      double stall_limit_s, size_t trace_events, size_t arena_bytes) {
  if (size < 1 || rank < 0 || rank >= size) throw nb::value_error("rank must lie in 0 .. size - 1");
  if (hosts.size() != static_cast<size_t>(size)) throw nb::value_error("hosts must name one host for each rank");
  nb::gil_scoped_release release;
  auto arena = std::make_unique<Arena>(arena_fd, rank, size, arena_bytes);
  std::vector<std::unique_ptr<Link>> made;
  if (hub) made = hub->join(rank, arena->shared_sleeping());
  for (auto& [peer, transport, fds, peer_arena_fd] : links) {
    if (transport == "shm" && fds.size() == 1) {
      Descriptor closes(peer_arena_fd);
      arena->map_peer(peer, peer_arena_fd);
      made.push_back(make_shm_link(rank, peer, fds[0], *arena));
    } else if (transport == "tcp" && fds.size() == 2) {
      made.push_back(make_tcp_link(peer, fds[0], fds[1]));
    } else {
      throw std::runtime_error("a link to rank " + std::to_string(peer) + " has transport '" + transport + "' with " + std::to_string(fds.size()) + " sockets");
    }
  }
  auto mesh = std::make_unique<Mesh>(rank, size, std::move(hosts), std::move(arena), std::move(made), spin_us);
  EngineOptions options{epoch, fusion_bytes, small_bytes, trace_events, {stall_warning_s, stall_limit_s}};
  auto engine = std::make_unique<PyEngine>();
  engine->engine = std::make_shared<Engine>(std::move(mesh), options);
  return engine;
}

template <size_t N, class Names>
nb::dict codes(const Names& names) {
  nb::dict d;
  for (size_t i = 0; i < N; ++i) d[names[i]] = static_cast<int>(i);
  return d;
}

}  // namespace
}  // namespace farandole

NB_MODULE(_core, m) {
  using namespace farandole;
  m.doc() = "The native core of farandole: engine, collectives, transports and reduction kernels.";
  nb::set_leak_warnings(false);  // at exit a default world may outlive the interpreter; its end is atexit's business

  m.def("kinds", [] { return codes<kind_count>(kind_names); }, nb::sig("def kinds() -> dict[str, int]"), "The code of each kind of request.");
  m.def("ops", [] { return codes<op_count>(op_names); }, nb::sig("def ops() -> dict[str, int]"), "The code of each reduction.");
  m.def("dtypes", [] {
    nb::dict d;
    for (size_t i = 0; i < dtype_count; ++i) d[dtype_table[i].name] = nb::make_tuple(static_cast<int>(i), dtype_table[i].bytes, dtype_table[i].reducible);
    return d;
  }, "name -> (code, bytes of one element, whether it can be reduced)", nb::sig("def dtypes() -> dict[str, tuple[int, int, bool]]"));
  m.def("why_not", [](int dtype, int op) {
    const char* why = kernels::why_not(checked<Dtype>(dtype, dtype_count, "dtype"), checked<ReduceOp>(op, op_count, "op"));
    return std::string(why ? why : "");
  }, "dtype"_a, "op"_a, "Why this dtype cannot be reduced with this op; empty when it can.");
  m.def("instruction_set", [] { return std::string(kernels::instruction_set()); }, "The instruction set the reduction kernels use here.");
  m.def("create_arena", &Arena::create, "size"_a, "arena_bytes"_a, "A memfd for this rank's arena in a world of `size` ranks; the caller owns it.");

  nb::class_<LoopbackHub>(m, "LoopbackHub", "Where ranks that are threads of one process find each other.")
      .def(nb::init<int>(), "size"_a);

  nb::class_<PyHandle>(m, "Handle", "A request in flight. Any thread may ask; results may be read once done.")
      .def("done", [](const PyHandle& h) { return h.handle->done(); })
      .def("wait", &PyHandle::wait, "timeout_s"_a, "True once done, False when the time is over first.")
      .def("status", [](const PyHandle& h) {
        const Status& s = h.handle->status;
        return nb::make_tuple(static_cast<int>(s.code), s.message, nb::tuple(nb::cast(s.ranks)));
      }, nb::sig("def status(self) -> tuple[int, str, tuple[int, ...]]"))
      .def("output", [](const PyHandle& h) { return as_array(h.handle->output, h.handle->output_bytes); },
           nb::sig("def output(self) -> numpy.typing.NDArray[numpy.uint8]"))
      .def("shape", [](const PyHandle& h) { return nb::tuple(nb::cast(h.handle->shape)); }, nb::sig("def shape(self) -> tuple[int, ...]"))
      .def("received_splits", [](const PyHandle& h) { return nb::tuple(nb::cast(h.handle->received_splits)); },
           nb::sig("def received_splits(self) -> tuple[int, ...]"));

  nb::class_<PyEngine>(m, "Engine", "One rank's engine: its thread, links and memory.")
      .def("__init__", [](PyEngine* self, int rank, int size, uint64_t epoch, std::vector<std::string> hosts, std::vector<PyLink> links, int arena_fd,
                          LoopbackHub* hub, size_t fusion_bytes, size_t small_bytes, int spin_us, double stall_warning_s, double stall_limit_s,
                          size_t trace_events, size_t arena_bytes) {
        new (self) PyEngine(*make_engine(rank, size, epoch, std::move(hosts), std::move(links), arena_fd, hub, fusion_bytes, small_bytes, spin_us,
                                         stall_warning_s, stall_limit_s, trace_events, arena_bytes));
      }, nb::kw_only(), "rank"_a, "size"_a, "epoch"_a, "hosts"_a, "links"_a, "arena_fd"_a, "hub"_a.none(), "fusion_bytes"_a, "small_bytes"_a,
         "spin_us"_a, "stall_warning_s"_a, "stall_limit_s"_a, "trace_events"_a, "arena_bytes"_a)
      .def("submit", [](PyEngine& e, int kind, std::string name, uint32_t process_set, int dtype, int op, std::vector<int64_t> shape, int root,
                        double prescale, double postscale, std::vector<int64_t> splits, uintptr_t input, uintptr_t output, std::string refusal, bool sync) {
        std::vector<PyRequest> one;
        one.emplace_back(kind, std::move(name), process_set, dtype, op, std::move(shape), root, prescale, postscale, std::move(splits), input, output, std::move(refusal));
        return std::move(submit(e, std::move(one), sync)[0]);
      }, "kind"_a, "name"_a, "process_set"_a, "dtype"_a, "op"_a, "shape"_a, "root"_a, "prescale"_a, "postscale"_a, "splits"_a, "input"_a, "output"_a,
         "refusal"_a, "sync"_a)
      .def("submit_group", [](PyEngine& e, std::vector<PyRequest> requests) { return submit(e, std::move(requests), false); }, "requests"_a)
      .def("allocate", [](PyEngine& e, size_t nbytes) { return as_array(e.get().allocate(nbytes), nbytes); }, "nbytes"_a,
           nb::sig("def allocate(self, nbytes: int) -> numpy.typing.NDArray[numpy.uint8]"), "Registered memory, page-aligned, zeroed, freed with the array.")
      .def("abort", [](PyEngine& e, const std::string& reason) { e.get().abort(reason); }, "reason"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("shutdown", [](PyEngine& e, double timeout_s) { e.get().shutdown(timeout_s); }, "timeout_s"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("links", [](PyEngine& e) { return e.get().links(); }, nb::call_guard<nb::gil_scoped_release>())
      .def("counters", [](PyEngine& e) {
        Counters c;
        {
          nb::gil_scoped_release release;  // whoever drives the engine may want it before it lets us in
          c = e.get().counters();
        }
        nb::dict d;
        d["operations"] = c.operations;
        d["plans"] = c.plans;
        d["fused"] = c.fused;
        d["small"] = c.small;
        d["failed"] = c.failed;
        d["bytes"] = c.bytes;
        d["run_ns"] = c.run_ns;
        return d;
      }, nb::sig("def counters(self) -> dict[str, int]"))
      .def("trace", [](PyEngine& e) {
        std::vector<Event> events;
        {
          nb::gil_scoped_release release;
          events = e.get().trace();
        }
        nb::list l;
        for (const Event& v : events)
          l.append(nb::make_tuple(v.time_ns, phase_names[static_cast<size_t>(v.phase)], name_of(static_cast<Kind>(v.kind)), v.name.data(), v.bytes, v.sequence));
        return l;
      }, nb::sig("def trace(self) -> list[tuple[int, str, str, str, int, int]]"), "The last events: (steady clock ns, phase, kind, name, bytes, sequence).");
}
