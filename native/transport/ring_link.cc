#include "transport/ring_link.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <system_error>

#include "base/status.h"

namespace farandole {

RingLink::RingLink(int peer, const char* transport, Descriptor bell, std::array<Ring, 2> in, std::array<Ring, 2> out,
                   std::atomic<uint32_t>* peer_sleeping, std::shared_ptr<void> owner)
    : Link(peer), transport_(transport), bell_(std::move(bell)), in_(in), out_(out), peer_sleeping_(peer_sleeping), owner_(std::move(owner)) {}

size_t RingLink::try_send(Stream stream, const void* bytes, size_t size) {
  if (!lost_.empty()) throw LinkLost(peer, lost_);
  size_t n = out_[static_cast<size_t>(stream)].try_write(bytes, size);
  if (n) notify();
  return n;
}

size_t RingLink::try_recv(Stream stream, void* bytes, size_t size) {
  size_t n = in_[static_cast<size_t>(stream)].try_read(bytes, size);
  if (n) notify();  // the peer may sleep for want of room
  else if (!lost_.empty() && size) throw LinkLost(peer, lost_);
  return n;
}

void RingLink::notify() {
  // Pairs with the fence in Mesh::announce_sleep: either we see the flag, or the peer sees our bytes before it sleeps.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (peer_sleeping_->load(std::memory_order_relaxed) && peer_sleeping_->exchange(0) != 0) {
    char byte = 0;
    (void)!::send(bell_.get(), &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);  // full: enough bells wait; closed: seen by woken()
  }
}

void RingLink::woken() {
  char bytes[64];
  for (;;) {
    ssize_t n = ::recv(bell_.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (n > 0) continue;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (lost_.empty()) lost_ = n == 0 ? "its process ended or closed the connection" : std::system_category().message(errno);
    return;
  }
}

std::unique_ptr<Link> make_shm_link(int rank, int peer, int unix_fd, const Arena& arena) {
  std::array<Ring, 2> in{arena.ring(rank, peer, 0), arena.ring(rank, peer, 1)};
  std::array<Ring, 2> out{arena.ring(peer, rank, 0), arena.ring(peer, rank, 1)};
  return std::make_unique<RingLink>(peer, "shm", Descriptor(unix_fd), in, out, &arena.progress(peer).sleeping, nullptr);
}

LoopbackHub::LoopbackHub(int n) : size(n), sleeping_(static_cast<size_t>(n)), bells_(static_cast<size_t>(n) * static_cast<size_t>(n)), rings_(bells_.size()) {
  auto at = [n](int a, int b) { return static_cast<size_t>(a) * static_cast<size_t>(n) + static_cast<size_t>(b); };
  constexpr size_t bytes = Ring::footprint(Arena::control_ring_bytes) + Ring::footprint(Arena::data_ring_bytes);
  for (int a = 0; a < n; ++a)
    for (int b = 0; b < n; ++b) {
      if (a == b) continue;
      auto* p = static_cast<char*>(std::aligned_alloc(64, bytes));
      std::memset(p, 0, bytes);
      rings_[at(a, b)] = std::shared_ptr<char>(p, std::free);
      if (a > b) continue;
      int fds[2];
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) < 0)
        throw std::system_error(errno, std::generic_category(), "socketpair");
      bells_[at(a, b)] = Descriptor(fds[0]);
      bells_[at(b, a)] = Descriptor(fds[1]);
    }
}

std::vector<std::unique_ptr<Link>> LoopbackHub::join(int rank, std::shared_ptr<std::atomic<uint32_t>> sleeping) {
  std::unique_lock lock(mutex_);
  sleeping_[static_cast<size_t>(rank)] = std::move(sleeping);
  ++joined_;
  arrived_.notify_all();
  if (!arrived_.wait_for(lock, std::chrono::seconds(60), [&] { return joined_ == size; }))
    throw Failure({Code::stall, "only " + std::to_string(joined_) + " of " + std::to_string(size) + " loopback ranks joined within 60 s", {}});
  auto at = [this](int a, int b) { return static_cast<size_t>(a) * static_cast<size_t>(size) + static_cast<size_t>(b); };
  auto pair = [](char* p) {
    char* q = p + Ring::footprint(Arena::control_ring_bytes);
    return std::array<Ring, 2>{Ring(reinterpret_cast<RingHead*>(p), p + sizeof(RingHead), Arena::control_ring_bytes),
                               Ring(reinterpret_cast<RingHead*>(q), q + sizeof(RingHead), Arena::data_ring_bytes)};
  };
  std::vector<std::unique_ptr<Link>> links;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    auto in = rings_[at(rank, peer)], out = rings_[at(peer, rank)];
    auto flag = sleeping_[static_cast<size_t>(peer)];
    auto owner = std::make_shared<std::array<std::shared_ptr<void>, 3>>(std::array<std::shared_ptr<void>, 3>{in, out, flag});
    links.push_back(std::make_unique<RingLink>(peer, "loopback", std::move(bells_[at(rank, peer)]), pair(in.get()), pair(out.get()),
                                               flag.get(), owner));
  }
  return links;
}

}  // namespace farandole
