// The ring (Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
// Words used here. Block: the part of the elements that belongs to one member; N of them. Every member sends only to its right neighbour and
// receives only from its left one. In step s of N-1 it sends the block it received in step s-1 and receives the one before that in the ring.
//
//   reduce-scatter, N-1 steps: what comes in is added to the own contribution; after them each member holds one finished block
//   allgather, N-1 steps:      finished blocks go round
//
// All steps run as one continuous stream each way: a byte may be sent as soon as it has been received and reduced, so the wire never waits
// for the end of a step. 2(N-1)/N of the data passes each link.
#include <algorithm>
#include <cstring>

#include "collective/peer_to_peer.h"
#include "kernels/kernels.h"

namespace farandole::peer_to_peer {
namespace {

constexpr size_t scratch_bytes = 256 << 10;  // what is received before it is reduced: stays in the second-level cache

// Pieces of memory that a stream passes through, in order.
struct Piece {
  char* at;
  size_t bytes;
};

// One direction of the ring: pieces in stream order and how far we are.
class Track {
 public:
  void add(char* at, size_t bytes) { pieces_.push_back({at, bytes}); }
  bool finished() {
    while (piece_ < pieces_.size() && offset_ == pieces_[piece_].bytes) {
      ++piece_;
      offset_ = 0;
    }
    return piece_ == pieces_.size();
  }
  size_t index() const { return piece_; }
  size_t offset() const { return offset_; }
  char* here() const { return pieces_[piece_].at + offset_; }
  size_t left() const { return pieces_[piece_].bytes - offset_; }
  void advance(size_t n) {
    offset_ += n;
    passed_ += n;
  }
  size_t passed() const { return passed_; }

 private:
  std::vector<Piece> pieces_;
  size_t piece_ = 0, offset_ = 0, passed_ = 0;
};

// Streams `out` to the right and `in` from the left. The first reduced_pieces of `in` are combined with what is there (its own contribution), the
// rest overwrite it. lead: bytes of `out` that may go before anything has come in.
void stream(const Context& c, Track& out, Track& in, size_t lead, size_t reduced_pieces, const Reduction& r) {
  size_t n = static_cast<size_t>(c.size()), me = static_cast<size_t>(c.me);
  Link& right = c.link(static_cast<int>((me + 1) % n));
  Link& left = c.link(static_cast<int>((me + n - 1) % n));
  size_t item = info(r.dtype).bytes;
  thread_local std::vector<char> scratch(scratch_bytes);
  size_t held = 0;  // received bytes in scratch that are not a whole element yet, or not reduced yet

  auto send = [&] {
    while (!out.finished()) {
      size_t allowed = lead + in.passed() - out.passed();
      size_t sent = right.try_send(Stream::data, out.here(), std::min(out.left(), allowed));
      if (!sent) return;
      out.advance(sent);
    }
  };
  auto receive = [&] {
    while (!in.finished()) {
      if (in.index() >= reduced_pieces) {
        size_t got = left.try_recv(Stream::data, in.here(), in.left());
        if (!got) return;
        in.advance(got);
      } else {
        size_t got = left.try_recv(Stream::data, scratch.data() + held, std::min(scratch_bytes, in.left()) - held);
        if (!got) return;
        held += got;
        size_t whole = held / item * item;
        if (whole == 0) continue;
        // The last combination of a block happens at the last of its N-1 stops and takes the factor along.
        const void* both[2] = {in.here(), scratch.data()};
        void* to = in.here();
        double post = in.index() + 1 == reduced_pieces ? r.post : 1;
        kernels::reduce(r.dtype, r.op, both, 2, &to, 1, whole / item, 1, post);
        std::memmove(scratch.data(), scratch.data() + whole, held - whole);
        held -= whole;
        in.advance(whole);
      }
      send();  // it is hot in cache now
    }
  };
  c.mesh.wait(c.name, c.deadline, [&] {
    send();
    receive();
    return out.finished() && in.finished();
  });
}

// The own contribution, prescaled once, where the ring will add to it.
void lay_out(const void* input, void* output, size_t elements, const Reduction& r, double post) {
  if (r.pre == 1 && post == 1) {
    if (elements && input != output) std::memcpy(output, input, elements * info(r.dtype).bytes);
  } else {
    kernels::reduce(r.dtype, r.op, &input, 1, &output, 1, elements, r.pre, post);
  }
}

size_t before(size_t i, size_t steps, size_t n) { return (i + n * 2 - steps) % n; }

}  // namespace

void allreduce(const Context& c, const void* input, void* output, size_t elements, const Reduction& r) {
  size_t n = static_cast<size_t>(c.size()), me = static_cast<size_t>(c.me), item = info(r.dtype).bytes;
  lay_out(input, output, elements, r, n == 1 ? r.post : 1);
  if (n == 1) return;
  auto* base = static_cast<char*>(output);
  auto start = [&](size_t block) { return elements * block / n * item; };
  Track out, in;
  for (size_t s = 0; s < 2 * (n - 1); ++s) {
    size_t sent = before(me, s % n, n), received = before(me, (s + 1) % n, n);
    out.add(base + start(sent), start(sent + 1) - start(sent));
    in.add(base + start(received), start(received + 1) - start(received));
  }
  stream(c, out, in, start(me + 1) - start(me), n - 1, r);
}

void reducescatter(const Context& c, const void* input, void* output, const std::vector<size_t>& counts, const Reduction& r) {
  size_t n = static_cast<size_t>(c.size()), me = static_cast<size_t>(c.me), item = info(r.dtype).bytes;
  std::vector<size_t> starts{0};
  for (size_t k : counts) starts.push_back(starts.back() + k * item);
  if (n == 1) return lay_out(input, output, counts[0], r, r.post);
  // Partial sums need room that is not the caller's input. The block that ends here is the own one: start one further back.
  thread_local std::vector<char> work;
  if (work.size() < starts.back()) work.resize(starts.back());
  lay_out(input, work.data(), starts.back() / item, r, 1);
  Track out, in;
  for (size_t s = 0; s + 1 < n; ++s) {
    size_t sent = before(me, s + 1, n), received = before(me, (s + 2) % n, n);
    out.add(work.data() + starts[sent], starts[sent + 1] - starts[sent]);
    in.add(work.data() + starts[received], starts[received + 1] - starts[received]);
  }
  stream(c, out, in, counts[before(me, 1, n)] * item, n - 1, r);
  if (counts[me]) std::memcpy(output, work.data() + starts[me], counts[me] * item);
}

void allgather(const Context& c, const void* input, void* output, const std::vector<size_t>& bytes) {
  size_t n = static_cast<size_t>(c.size()), me = static_cast<size_t>(c.me);
  std::vector<size_t> starts{0};
  for (size_t k : bytes) starts.push_back(starts.back() + k);
  auto* base = static_cast<char*>(output);
  if (bytes[me]) std::memmove(base + starts[me], input, bytes[me]);
  if (n == 1) return;
  Track out, in;
  for (size_t s = 0; s + 1 < n; ++s) {
    size_t sent = before(me, s, n), received = before(me, s + 1, n);
    out.add(base + starts[sent], bytes[sent]);
    in.add(base + starts[received], bytes[received]);
  }
  stream(c, out, in, bytes[me], 0, {Dtype::uint8, ReduceOp::sum});
}

}  // namespace farandole::peer_to_peer
