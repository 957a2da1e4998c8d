// Whole engines as threads of one process, over loopback, shm and tcp: what the sanitizers watch.
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cmath>
#include <thread>

#include "engine/engine.h"
#include "tests/check.h"
#include "transport/ring_link.h"
#include "transport/tcp.h"

using namespace farandole;

namespace {

constexpr size_t arena_bytes = 64 << 20;

std::pair<int, int> connected_tcp() {
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in a{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  socklen_t n = sizeof a;
  CHECK(bind(listener, reinterpret_cast<sockaddr*>(&a), n) == 0 && listen(listener, 1) == 0);
  CHECK(getsockname(listener, reinterpret_cast<sockaddr*>(&a), &n) == 0);
  int x = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK(connect(x, reinterpret_cast<sockaddr*>(&a), n) == 0);
  int y = accept(listener, nullptr, nullptr);
  CHECK(y >= 0);
  close(listener);
  return {x, y};
}

std::vector<std::unique_ptr<Engine>> world(int size, const std::string& transport) {
  auto n = static_cast<size_t>(size);
  std::vector<std::unique_ptr<Arena>> arenas;
  std::vector<std::vector<std::unique_ptr<Link>>> links(n);
  std::vector<int> fds;
  for (int r = 0; r < size; ++r) {
    fds.push_back(transport == "shm" ? Arena::create(size, arena_bytes) : -1);
    arenas.push_back(std::make_unique<Arena>(fds.back(), r, size, arena_bytes));
  }
  LoopbackHub hub(size);
  std::vector<std::thread> joining;
  for (int a = 0; a < size; ++a) {
    auto i = static_cast<size_t>(a);
    if (transport == "loopback") joining.emplace_back([&, a, i] { links[i] = hub.join(a, arenas[i]->shared_sleeping()); });
    for (int b = a + 1; b < size && transport != "loopback"; ++b) {
      auto j = static_cast<size_t>(b);
      if (transport == "shm") {
        int bells[2];
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, bells) == 0);
        arenas[i]->map_peer(b, fds[j]);
        arenas[j]->map_peer(a, fds[i]);
        links[i].push_back(make_shm_link(a, b, bells[0], *arenas[i]));
        links[j].push_back(make_shm_link(b, a, bells[1], *arenas[j]));
      } else {
        auto [control_a, control_b] = connected_tcp();
        auto [data_a, data_b] = connected_tcp();
        links[i].push_back(make_tcp_link(b, control_a, data_a));
        links[j].push_back(make_tcp_link(a, control_b, data_b));
      }
    }
  }
  for (auto& t : joining) t.join();
  for (int fd : fds)
    if (fd >= 0) close(fd);
  std::vector<std::unique_ptr<Engine>> engines;
  for (int r = 0; r < size; ++r) {
    auto i = static_cast<size_t>(r);
    auto mesh = std::make_unique<Mesh>(r, size, std::vector<std::string>(n, "host"), std::move(arenas[i]), std::move(links[i]), -1);
    engines.push_back(std::make_unique<Engine>(std::move(mesh), EngineOptions{.epoch = 3, .stall = {5, 30}}));
  }
  return engines;
}

struct Rank {
  Engine& engine;
  int rank, size;

  std::shared_ptr<Handle> start(Kind kind, const std::string& name, std::vector<int64_t> shape, const void* in, void* out, bool sync,
                                std::vector<int64_t> splits = {}, ReduceOp op = ReduceOp::sum) {
    Operation o;
    o.request.op = op;
    o.request.kind = kind;
    o.request.name = name;
    o.request.shape = std::move(shape);
    o.request.splits = std::move(splits);
    o.input = in;
    o.output = out;
    auto handle = o.handle = std::make_shared<Handle>();
    std::vector<Operation> one;
    one.push_back(std::move(o));
    engine.submit(std::move(one), sync);
    return handle;
  }

  void finish(const std::shared_ptr<Handle>& h) {
    CHECK(engine.wait(h, 60, [] { return false; }));
    if (!h->status.ok()) std::fprintf(stderr, "%s\n", h->status.message.c_str());
    CHECK(h->status.ok());
  }
};

float value(int rank, size_t i) { return static_cast<float>((static_cast<size_t>(rank) * 2 + i) % 5); }

void every_collective(Rank r) {
  for (size_t n : {0ul, 1ul, 7ul, 5000ul, 300001ul}) {
    std::vector<float> in(n), out(n);
    for (size_t i = 0; i < n; ++i) in[i] = value(r.rank, i);
    auto elements = static_cast<int64_t>(n);
    for (bool sync : {true, false}) {
      r.finish(r.start(Kind::allreduce, "a", {elements}, in.data(), out.data(), sync));
      for (size_t i = 0; i < n; ++i) {
        float want = 0;
        for (int k = 0; k < r.size; ++k) want += value(k, i);
        CHECK(out[i] == want);
      }
    }
    auto bytes = std::max<size_t>(n, 1) * sizeof(float);
    auto registered = r.engine.allocate(bytes);
    std::copy(in.begin(), in.end(), reinterpret_cast<float*>(registered.get()));
    r.finish(r.start(Kind::allreduce, "r", {elements}, registered.get(), registered.get(), true));
    CHECK(std::equal(out.begin(), out.end(), reinterpret_cast<float*>(registered.get())));

    std::vector<float> copy = in;
    r.finish(r.start(Kind::broadcast, "b", {elements}, copy.data(), copy.data(), true));
    for (size_t i = 0; i < n; ++i) CHECK(copy[i] == value(0, i));
  }
}

void gathers_and_scatters(Rank r) {
  for (int64_t n : {0, 1, 3, 4001, 200003}) {
    std::vector<float> mine(static_cast<size_t>(n * r.rank), static_cast<float>(r.rank));
    auto h = r.start(Kind::allgather, "g", {n * r.rank}, mine.data(), nullptr, true);
    r.finish(h);
    auto* got = reinterpret_cast<float*>(h->output.get());
    for (int k = 0; k < r.size; ++k)
      for (int64_t i = 0; i < n * k; ++i) CHECK(*got++ == static_cast<float>(k));

    std::vector<float> in(static_cast<size_t>(n) * 2), out(static_cast<size_t>(share_of_rows(n, r.size, r.rank)) * 2);
    for (size_t i = 0; i < in.size(); ++i) in[i] = value(r.rank, i);
    r.finish(r.start(Kind::reducescatter, "s", {n, 2}, in.data(), out.data(), true));
    size_t start = 0;
    for (int k = 0; k < r.rank; ++k) start += static_cast<size_t>(share_of_rows(n, r.size, k)) * 2;
    for (size_t i = 0; i < out.size(); ++i) {
      float want = 0;
      for (int k = 0; k < r.size; ++k) want += value(k, start + i);
      CHECK(out[i] == want);
    }

    std::vector<int64_t> splits;
    std::vector<float> parts;
    for (int to = 0; to < r.size; ++to) {
      splits.push_back((r.rank + 2 * to) % 3 * n);
      parts.insert(parts.end(), static_cast<size_t>(splits.back()), static_cast<float>(10 * r.rank + to));
    }
    auto t = r.start(Kind::alltoall, "t", {static_cast<int64_t>(parts.size())}, parts.data(), nullptr, false, splits);
    r.finish(t);
    got = reinterpret_cast<float*>(t->output.get());
    for (int from = 0; from < r.size; ++from) {
      CHECK(t->received_splits[static_cast<size_t>(from)] == (from + 2 * r.rank) % 3 * n);
      for (int64_t i = 0; i < t->received_splits[static_cast<size_t>(from)]; ++i) CHECK(*got++ == static_cast<float>(10 * from + r.rank));
    }
  }
  r.finish(r.start(Kind::barrier, "barrier", {}, nullptr, nullptr, true));
}

void many_in_any_order(Rank r) {
  constexpr int count = 60;
  std::vector<std::vector<float>> data;
  for (int i = 0; i < count; ++i) data.emplace_back(static_cast<size_t>(1 + i * 97), static_cast<float>(r.rank + i));
  std::vector<std::shared_ptr<Handle>> handles(count);
  for (int k = 0; k < count; ++k) {
    int i = (k * 7 + r.rank * 11) % count;
    auto& d = data[static_cast<size_t>(i)];
    handles[static_cast<size_t>(i)] = r.start(Kind::allreduce, std::to_string(i), {static_cast<int64_t>(d.size())}, d.data(), d.data(), false);
  }
  for (int i = 0; i < count; ++i) {
    r.finish(handles[static_cast<size_t>(i)]);
    CHECK(data[static_cast<size_t>(i)].back() == static_cast<float>(r.size * i + r.size * (r.size - 1) / 2));
  }
}

// Adasum of equal vectors is that vector; of orthogonal ones, their sum.
void adaptive_sums(Rank r) {
  for (size_t n : {1ul, 7ul, 5000ul}) {
    std::vector<float> same(n, 3), apart(n * static_cast<size_t>(r.size), 0);
    for (size_t i = 0; i < n; ++i) apart[i * static_cast<size_t>(r.size) + static_cast<size_t>(r.rank)] = static_cast<float>(r.rank + 1);
    r.finish(r.start(Kind::allreduce, "same", {static_cast<int64_t>(n)}, same.data(), same.data(), true, {}, ReduceOp::adasum));
    r.finish(r.start(Kind::allreduce, "apart", {static_cast<int64_t>(apart.size())}, apart.data(), apart.data(), true, {}, ReduceOp::adasum));
    for (size_t i = 0; i < n; ++i) CHECK(std::abs(same[i] - 3) < 1e-4);
    for (size_t i = 0; i < apart.size(); ++i) CHECK(std::abs(apart[i] - static_cast<float>(i % static_cast<size_t>(r.size) + 1)) < 1e-4);
  }
}

void on_all(int size, const std::string& transport, void (*body)(Rank)) {
  auto engines = world(size, transport);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) threads.emplace_back([&, r] {
    body({*engines[static_cast<size_t>(r)], r, size});
    engines[static_cast<size_t>(r)]->shutdown(5);
  });
  for (auto& t : threads) t.join();
}

void a_failure_reaches_everyone(const std::string& transport) {
  auto engines = world(3, transport);
  std::vector<float> a(100000), b(100000);
  auto x = Rank{*engines[0], 0, 3}.start(Kind::allreduce, "x", {100000}, a.data(), a.data(), false);
  auto y = Rank{*engines[1], 1, 3}.start(Kind::allreduce, "x", {100000}, b.data(), b.data(), false);
  engines[2]->abort("ValueError: boom");
  for (auto& h : {x, y}) {
    CHECK(h->wait_for(std::chrono::seconds(20)));
    CHECK(h->status.code == Code::peer_lost && h->status.message.find("rank 2 on host failed: ValueError: boom") != std::string::npos);
  }
}

}  // namespace

int main() {
  for (const char* transport : {"loopback", "shm", "tcp"}) {
    for (int size : {1, 2, 3, 5}) {
      on_all(size, transport, every_collective);
      on_all(size, transport, gathers_and_scatters);
      on_all(size, transport, many_in_any_order);
      on_all(size, transport, adaptive_sums);
    }
    a_failure_reaches_everyone(transport);
  }
}
