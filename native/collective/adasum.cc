// Adasum adds two gradients so that what they have in common counts once (Maleki et al., "Scaling Distributed Training with Adaptive
// Summation", 2020): a (1 - a.b / 2 a.a) + b (1 - a.b / 2 b.b). Members are combined in pairs, then pairs of pairs, and so on.
//
// Like a halving-doubling allreduce: at distance d a member trades half of its range with the member me ^ d, so that the pair's vectors lie spread
// over 2d members; their scalar products are partial sums over those, and one more exchange of three numbers completes them. Then the ranges grow
// back. Members above the largest power of two first add theirs to a partner below it, and get the result at the end.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "collective/peer_to_peer.h"
#include "kernels/kernels.h"

namespace farandole::peer_to_peer {
namespace {

// Sends and receives at once, with one member; either side may be empty.
void trade(const Context& c, int with, const void* out, size_t out_bytes, void* in, size_t in_bytes) {
  Link& link = c.link(with);
  size_t sent = 0, received = 0;
  c.mesh.wait(c.name, c.deadline, [&] {
    for (;;) {
      size_t s = sent < out_bytes ? link.try_send(Stream::data, static_cast<const char*>(out) + sent, out_bytes - sent) : 0;
      size_t r = received < in_bytes ? link.try_recv(Stream::data, static_cast<char*>(in) + received, in_bytes - received) : 0;
      sent += s;
      received += r;
      bool finished = sent == out_bytes && received == in_bytes;
      if (finished || s + r == 0) return finished;
    }
  });
}

// What each vector of a pair is multiplied with. A vector of almost no length has no direction to share.
struct Weights {
  double of_a, of_b;
};

Weights weights(const double dots[3]) {
  const double least = std::sqrt(std::numeric_limits<double>::min());
  return {dots[0] < least ? 1 : 1 - dots[2] / (2 * dots[0]), dots[1] < least ? 1 : 1 - dots[2] / (2 * dots[1])};
}

}  // namespace

void adasum(const Context& c, const void* input, void* output, size_t elements, const Reduction& r) {
  size_t item = info(r.dtype).bytes;
  int n = c.size(), me = c.me, core = static_cast<int>(std::bit_floor(static_cast<unsigned>(n)));
  auto* data = static_cast<char*>(output);
  if (r.pre != 1) kernels::reduce(r.dtype, ReduceOp::sum, &input, 1, &output, 1, elements, r.pre, 1);
  else if (input != output) std::memcpy(output, input, elements * item);

  if (me >= core) {
    trade(c, me - core, data, elements * item, nullptr, 0);
    trade(c, me - core, nullptr, 0, data, elements * item);
    return;
  }
  thread_local std::vector<char> scratch;
  if (scratch.size() < elements * item) scratch.resize(elements * item);
  if (me + core < n) {
    trade(c, me + core, nullptr, 0, scratch.data(), elements * item);
    double dots[3];
    kernels::dots(r.dtype, data, scratch.data(), elements, dots);
    Weights w = weights(dots);
    kernels::blend(r.dtype, data, scratch.data(), data, elements, w.of_a, w.of_b);
  }

  struct Range {
    size_t begin, end;
  };
  std::vector<Range> ranges{{0, elements}};  // what this member held before each exchange
  for (int d = 1; d < core; d *= 2) {
    auto [begin, end] = ranges.back();
    size_t middle = begin + (end - begin) / 2;
    bool lower = (me & d) == 0;
    Range kept = lower ? Range{begin, middle} : Range{middle, end}, given = lower ? Range{middle, end} : Range{begin, middle};
    char* mine = data + kept.begin * item;
    size_t count = kept.end - kept.begin;
    trade(c, me ^ d, data + given.begin * item, (given.end - given.begin) * item, scratch.data(), count * item);
    const char* a = lower ? mine : scratch.data();  // of the members without bit d
    const char* b = lower ? scratch.data() : mine;
    double dots[3], theirs[3];
    kernels::dots(r.dtype, a, b, count, dots);
    for (int e = 1; e <= d; e *= 2) {
      trade(c, me ^ e, dots, sizeof dots, theirs, sizeof theirs);
      for (int i = 0; i < 3; ++i) dots[i] += theirs[i];
    }
    Weights w = weights(dots);
    kernels::blend(r.dtype, a, b, mine, count, w.of_a, w.of_b);
    ranges.push_back(kept);
  }
  if (r.post != 1) {
    auto [begin, end] = ranges.back();
    const void* in = data + begin * item;
    void* out = data + begin * item;
    kernels::reduce(r.dtype, ReduceOp::sum, &in, 1, &out, 1, end - begin, 1, r.post);
  }
  for (int d = core / 2; d >= 1; d /= 2) {
    Range held = ranges.back();
    ranges.pop_back();
    Range whole = ranges.back();
    Range other = held.begin == whole.begin ? Range{held.end, whole.end} : Range{whole.begin, held.begin};
    trade(c, me ^ d, data + held.begin * item, (held.end - held.begin) * item, data + other.begin * item, (other.end - other.begin) * item);
  }
  if (me + core < n) trade(c, me + core, data, elements * item, nullptr, 0);
}

}  // namespace farandole::peer_to_peer
