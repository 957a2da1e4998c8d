// Broadcast and alltoall over links.
#include <algorithm>
#include <bit>
#include <cstring>

#include "collective/peer_to_peer.h"

namespace farandole::peer_to_peer {
namespace {

// Up to here latency counts, and a tree of depth log2(N) is best; above it a chain keeps every link busy with different segments.
constexpr size_t tree_bytes = 64 << 10;

// Passes the bytes from one member on to others: sends what has been received so far.
void relay(const Context& c, int from, const std::vector<int>& to, char* data, size_t bytes) {
  size_t received = from < 0 ? bytes : 0;
  std::vector<size_t> sent(to.size(), 0);
  c.mesh.wait(c.name, c.deadline, [&] {
    for (;;) {
      bool moved = false;
      if (received < bytes) {
        size_t got = c.link(from).try_recv(Stream::data, data + received, bytes - received);
        received += got;
        moved |= got > 0;
      }
      bool finished = received == bytes;
      for (size_t i = 0; i < to.size(); ++i) {
        if (sent[i] < received) {
          size_t n = c.link(to[i]).try_send(Stream::data, data + sent[i], received - sent[i]);
          sent[i] += n;
          moved |= n > 0;
        }
        finished &= sent[i] == bytes;
      }
      if (finished || !moved) return finished;
    }
  });
}

}  // namespace

void broadcast(const Context& c, const void* input, void* output, size_t bytes, int root_index) {
  int n = c.size(), position = (c.me - root_index + n) % n;  // the root is at 0
  auto member = [&](int at) { return (at + root_index) % n; };
  if (position == 0 && input != output) std::memcpy(output, input, bytes);
  int from = -1;
  std::vector<int> to;
  if (bytes > tree_bytes) {
    if (position > 0) from = member(position - 1);
    if (position + 1 < n) to.push_back(member(position + 1));
  } else {
    // Binomial tree: the parent lacks the highest bit of the position; children add each higher bit, the farthest first.
    auto at = static_cast<unsigned>(position);
    unsigned first = at == 0 ? 1 : std::bit_floor(at) << 1;
    if (at > 0) from = member(static_cast<int>(at ^ std::bit_floor(at)));
    for (unsigned bit = std::bit_floor(static_cast<unsigned>(n)); bit >= first; bit >>= 1)
      if (at + bit < static_cast<unsigned>(n)) to.push_back(member(static_cast<int>(at + bit)));
  }
  relay(c, from, to, static_cast<char*>(output), bytes);
}

void alltoall(const Context& c, const void* input, void* output, const std::vector<size_t>& send, const std::vector<size_t>& recv) {
  size_t n = static_cast<size_t>(c.size()), me = static_cast<size_t>(c.me);
  auto from = consecutive(static_cast<const char*>(input), send);
  auto to = consecutive(static_cast<char*>(output), recv);
  if (send[me]) std::memcpy(to[me], from[me], send[me]);
  std::vector<size_t> sent(n, 0), received(n, 0);
  sent[me] = send[me];
  received[me] = recv[me];
  c.mesh.wait(c.name, c.deadline, [&] {
    for (;;) {
      bool moved = false, finished = true;
      // Begin with the right neighbour, so that not all members send to the same one first.
      for (size_t k = 1; k < n; ++k) {
        size_t i = (me + k) % n;
        Link& link = c.link(static_cast<int>(i));
        size_t s = sent[i] < send[i] ? link.try_send(Stream::data, from[i] + sent[i], send[i] - sent[i]) : 0;
        size_t r = received[i] < recv[i] ? link.try_recv(Stream::data, to[i] + received[i], recv[i] - received[i]) : 0;
        sent[i] += s;
        received[i] += r;
        moved |= s + r > 0;
        finished &= sent[i] == send[i] && received[i] == recv[i];
      }
      if (finished || !moved) return finished;
    }
  });
}

}  // namespace farandole::peer_to_peer
