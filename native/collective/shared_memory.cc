// Words used here. Slice: the part of the elements one member owns and reduces. Step: one round of moving a block of every slice.
// Slot: staging memory in a rank's own arena, where others read. Each member counts its progress in two numbers that peers read:
// `ready` (my input of that step lies where you can read it) and `done` (I have finished that step). Both carry the plan's
// sequence in their high bits, so they only grow and a late member is never mistaken for an early one.
#include "collective/shared_memory.h"

#include <algorithm>
#include <cstring>

#include "kernels/kernels.h"

namespace farandole::shared_memory {
namespace {

constexpr int step_bits = 24;
constexpr uint64_t last_step = (uint64_t{1} << step_bits) - 1;
constexpr size_t block_bytes = 128 << 10;  // what one step moves per slice: a few of them fit the second-level cache
constexpr size_t line = 64;

class Meeting {
 public:
  explicit Meeting(const Context& c) : c_(c), base_(c.sequence << step_bits), mine_(c.mesh.arena().progress(c.mesh.rank)) {}

  void publish_ready(uint64_t step) { publish(mine_.ready, step); }
  void publish_done(uint64_t step) { publish(mine_.done, step); }
  void await_ready(uint64_t step) { await_all(&Progress::ready, step); }
  void await_done(uint64_t step) { await_all(&Progress::done, step); }
  void await_ready_of(int member, uint64_t step) { await_one(&Progress::ready, member, step); }
  void await_done_of(int member, uint64_t step) { await_one(&Progress::done, member, step); }

  // Nobody leaves before all have finished: until then peers read this rank's slots or write its output.
  void finish() {
    publish_done(last_step);
    await_done(last_step);
  }

 private:
  void publish(std::atomic<uint64_t>& counter, uint64_t step) {
    counter.store(base_ | step, std::memory_order_release);
    for (int m = 0; m < c_.size(); ++m)
      if (m != c_.me) c_.link(m).notify();
  }

  bool reached(std::atomic<uint64_t> Progress::*counter, int member, uint64_t step) const {
    return (c_.mesh.arena().progress(c_.members[static_cast<size_t>(member)]).*counter).load(std::memory_order_acquire) >= (base_ | step);
  }

  // Common memory has no end of file: what a lost member has not published by now it never will.
  bool reached_or_lost(std::atomic<uint64_t> Progress::*counter, int member, uint64_t step) const {
    if (reached(counter, member, step)) return true;
    const Link& link = c_.link(member);
    if (std::string why = link.lost(); !why.empty() && !reached(counter, member, step)) throw LinkLost(link.peer, why);
    return false;
  }

  void await_one(std::atomic<uint64_t> Progress::*counter, int member, uint64_t step) {
    c_.mesh.wait(c_.name, c_.deadline, [&] { return reached_or_lost(counter, member, step); });
  }

  void await_all(std::atomic<uint64_t> Progress::*counter, uint64_t step) {
    int next = 0;
    c_.mesh.wait(c_.name, c_.deadline, [&] {
      while (next < c_.size() && (next == c_.me || reached_or_lost(counter, next, step))) ++next;
      return next == c_.size();
    });
  }

  const Context& c_;
  uint64_t base_;
  Progress& mine_;
};

char* slots_of(const Context& c, int member) { return c.mesh.arena().slots(c.members[static_cast<size_t>(member)]); }

// Every member says where its buffers are; afterwards all know the same about each other. Uses ready step 1.
struct Places {
  std::vector<char*> input, output;  // by member, as mapped here; null: ordinary memory
  bool all_inputs = true, all_outputs = true;
};

Places exchange_places(const Context& c, Meeting& meeting, const void* input, size_t input_bytes, const void* output, size_t output_bytes) {
  Arena& arena = c.mesh.arena();
  Progress& mine = arena.progress(c.mesh.rank);
  mine.input_offset = arena.offset_of(input, input_bytes);
  mine.output_offset = arena.offset_of(output, output_bytes);
  meeting.publish_ready(1);
  meeting.await_ready(1);
  Places places;
  for (int rank : c.members) {
    const Progress& p = arena.progress(rank);
    places.input.push_back(p.input_offset < 0 ? nullptr : arena.at(rank, p.input_offset));
    places.output.push_back(p.output_offset < 0 ? nullptr : arena.at(rank, p.output_offset));
    places.all_inputs &= p.input_offset >= 0;
    places.all_outputs &= p.output_offset >= 0;
  }
  return places;
}

// Registered memory: the owner of a slice reads all inputs and writes it to all given outputs, once. The memory traffic of a memcpy.
void reduce_in_place(const Places& places, size_t begin, size_t end, const std::vector<char*>& outputs, size_t output_shift, const Reduction& r) {
  size_t item = info(r.dtype).bytes;
  std::vector<const void*> in(places.input.size());
  std::vector<void*> out(outputs.size());
  for (size_t at = begin; at < end; at += block_bytes / item) {
    size_t n = std::min(end - at, block_bytes / item);
    for (size_t i = 0; i < in.size(); ++i) in[i] = places.input[i] + at * item;
    for (size_t i = 0; i < out.size(); ++i) out[i] = outputs[i] + (at - output_shift) * item;
    kernels::reduce(r.dtype, r.op, in.data(), static_cast<int>(in.size()), out.data(), static_cast<int>(out.size()), n, r.pre, r.post);
  }
}

// Ordinary memory. In step k every member copies block k of every other member's slice into its slots, reduces block k of its own
// slice from its private input and the others' slots, and (share_result) everyone copies the owners' results out. Copy-in runs one
// step ahead and copy-out one behind, so that waits find their peers done; three slots in turn make that safe.
void reduce_staged(const Context& c, Meeting& meeting, const char* input, char* output, const std::vector<size_t>& starts,
                   const Reduction& r, bool share_result) {
  constexpr uint64_t buffers = 3, first = 2;  // ready step 1 was the exchange of places
  size_t n = static_cast<size_t>(c.size()), me = static_cast<size_t>(c.me), item = info(r.dtype).bytes;
  size_t block = std::min(block_bytes, Arena::slot_bytes / buffers / (n + 1)) / line * line / item;  // elements
  size_t longest = 0;
  for (size_t i = 0; i < n; ++i) longest = std::max(longest, starts[i + 1] - starts[i]);
  uint64_t steps = (longest + block - 1) / block;

  // Block k of member i's slice, and where in a member's slots the contribution to it (or, at i == n, its result) lies.
  auto begin = [&](size_t i, uint64_t k) { return std::min(starts[i] + k * block, starts[i + 1]); };
  auto count = [&](size_t i, uint64_t k) { return begin(i, k + 1) - begin(i, k); };
  auto slot = [&](size_t member, uint64_t k, size_t i) {
    return slots_of(c, static_cast<int>(member)) + ((k % buffers) * (n + 1) + i) * block * item;
  };
  size_t shift = share_result ? 0 : starts[me];  // a reducescatter's output starts at the own slice

  auto copy_in = [&](uint64_t k) {
    for (size_t i = 0; i < n; ++i)
      if (i != me) std::memcpy(slot(me, k, i), input + begin(i, k) * item, count(i, k) * item);
    meeting.publish_ready(first + k);
  };
  auto copy_out = [&](uint64_t k) {
    meeting.await_done(k + 1);
    if (!share_result) return;
    for (size_t i = 0; i < n; ++i)
      if (i != me) std::memcpy(output + begin(i, k) * item, slot(i, k, n), count(i, k) * item);
  };

  std::vector<const void*> in(n);
  if (steps > 0) copy_in(0);
  for (uint64_t k = 0; k < steps; ++k) {
    if (k + 1 < steps) copy_in(k + 1);
    meeting.await_ready(first + k);
    for (size_t i = 0; i < n; ++i) in[i] = i == me ? input + begin(me, k) * item : slot(i, k, me);
    void* out[2] = {output + (begin(me, k) - shift) * item, slot(me, k, n)};
    kernels::reduce(r.dtype, r.op, in.data(), static_cast<int>(n), out, share_result ? 2 : 1, count(me, k), r.pre, r.post);
    meeting.publish_done(k + 1);
    if (k > 0) copy_out(k - 1);
  }
  if (steps > 0) copy_out(steps - 1);
}

// Some members (the producers) stream their bytes to all. Registered inputs are read where they are, others through slots.
// output_of(i) is where producer i's bytes go.
template <class OutputOf>
void stream_to_all(const Context& c, const void* input, const std::vector<size_t>& bytes, OutputOf output_of) {
  constexpr uint64_t buffers = 4, first = 2;
  constexpr size_t block = 2 * block_bytes;
  static_assert(buffers * block <= Arena::slot_bytes);
  size_t n = static_cast<size_t>(c.size()), me = static_cast<size_t>(c.me);
  Meeting meeting(c);
  Places places = exchange_places(c, meeting, input, bytes[me], nullptr, 0);
  if (bytes[me] && output_of(me) != input) std::memmove(output_of(me), input, bytes[me]);

  uint64_t my_steps = places.input[me] ? 0 : (bytes[me] + block - 1) / block, steps = 0;
  for (size_t i = 0; i < n; ++i)
    if (!places.input[i]) steps = std::max<uint64_t>(steps, (bytes[i] + block - 1) / block);
  auto consume = [&](uint64_t k) {
    for (size_t i = 0; i < n; ++i) {
      if (i == me || places.input[i] || k * block >= bytes[i]) continue;
      meeting.await_ready_of(static_cast<int>(i), first + k);
      std::memcpy(output_of(i) + k * block, slots_of(c, static_cast<int>(i)) + (k % buffers) * block, std::min(block, bytes[i] - k * block));
    }
    meeting.publish_done(k + 1);
  };
  for (uint64_t k = 0; k < steps; ++k) {
    if (k < my_steps) {
      if (k >= buffers) meeting.await_done(k - buffers + 1);
      std::memcpy(slots_of(c, c.me) + (k % buffers) * block, static_cast<const char*>(input) + k * block, std::min(block, bytes[me] - k * block));
      meeting.publish_ready(first + k);
    }
    if (k > 0) consume(k - 1);
  }
  if (steps > 0) consume(steps - 1);
  for (size_t i = 0; i < n; ++i)
    if (i != me && places.input[i] && bytes[i]) std::memcpy(output_of(i), places.input[i], bytes[i]);
  meeting.finish();
}

std::vector<size_t> even_slices(size_t elements, int members) {
  // Boundaries on whole lines of any dtype, so that no two owners write one cache line.
  std::vector<size_t> starts;
  for (int i = 0; i <= members; ++i)
    starts.push_back(i == members ? elements : elements * static_cast<size_t>(i) / static_cast<size_t>(members) / line * line);
  return starts;
}

}  // namespace

void allreduce(const Context& c, const void* input, void* output, size_t elements, const Reduction& r) {
  size_t bytes = elements * info(r.dtype).bytes;
  std::vector<size_t> starts = even_slices(elements, c.size());
  Meeting meeting(c);
  Places places = exchange_places(c, meeting, input, bytes, output, bytes);
  auto me = static_cast<size_t>(c.me);
  if (places.all_inputs && places.all_outputs)
    reduce_in_place(places, starts[me], starts[me + 1], places.output, 0, r);
  else
    reduce_staged(c, meeting, static_cast<const char*>(input), static_cast<char*>(output), starts, r, true);
  meeting.finish();
}

void reducescatter(const Context& c, const void* input, void* output, const std::vector<size_t>& counts, const Reduction& r) {
  std::vector<size_t> starts{0};
  for (size_t n : counts) starts.push_back(starts.back() + n);
  auto me = static_cast<size_t>(c.me);
  Meeting meeting(c);
  Places places = exchange_places(c, meeting, input, starts.back() * info(r.dtype).bytes, nullptr, 0);
  if (places.all_inputs)
    reduce_in_place(places, starts[me], starts[me + 1], {static_cast<char*>(output)}, starts[me], r);
  else
    reduce_staged(c, meeting, static_cast<const char*>(input), static_cast<char*>(output), starts, r, false);
  meeting.finish();
}

void allgather(const Context& c, const void* input, void* output, const std::vector<size_t>& bytes) {
  auto at = consecutive(static_cast<char*>(output), bytes);
  stream_to_all(c, input, bytes, [&](size_t i) { return at[i]; });
}

void broadcast(const Context& c, const void* input, void* output, size_t bytes, int root_index) {
  std::vector<size_t> from(static_cast<size_t>(c.size()), 0);
  from[static_cast<size_t>(root_index)] = bytes;
  stream_to_all(c, input, from, [&](size_t) { return static_cast<char*>(output); });
}

void alltoall(const Context& c, const void* input, void* output, const std::vector<size_t>& send, const std::vector<size_t>& recv) {
  constexpr uint64_t buffers = 3, first = 1;
  size_t n = static_cast<size_t>(c.size()), me = static_cast<size_t>(c.me);
  size_t block = std::min(block_bytes, Arena::slot_bytes / buffers / n) / line * line;
  auto from = consecutive(static_cast<const char*>(input), send);
  auto to = consecutive(static_cast<char*>(output), recv);
  if (send[me]) std::memcpy(to[me], from[me], send[me]);

  auto steps_for = [&](size_t bytes) { return static_cast<uint64_t>((bytes + block - 1) / block); };
  uint64_t sends = 0, receives = 0;
  for (size_t i = 0; i < n; ++i) {
    if (i == me) continue;
    sends = std::max(sends, steps_for(send[i]));
    receives = std::max(receives, steps_for(recv[i]));
  }
  // In a member's slots, buffer k % buffers holds block k for each destination in member order.
  auto slot = [&](size_t member, uint64_t k, size_t destination) {
    return slots_of(c, static_cast<int>(member)) + ((k % buffers) * n + destination) * block;
  };
  Meeting meeting(c);
  for (uint64_t k = 0; k < std::max(sends, receives) + 1; ++k) {
    if (k < sends) {
      for (size_t i = 0; i < n; ++i) {
        if (i == me || k * block >= send[i]) continue;
        if (k >= buffers) meeting.await_done_of(static_cast<int>(i), k - buffers + 1);  // the slot's last block is read
        std::memcpy(slot(me, k, i), from[i] + k * block, std::min(block, send[i] - k * block));
      }
      meeting.publish_ready(first + k);
    }
    if (k == 0 || k > receives) continue;
    for (size_t i = 0; i < n; ++i) {
      if (i == me || (k - 1) * block >= recv[i]) continue;
      meeting.await_ready_of(static_cast<int>(i), first + k - 1);
      std::memcpy(to[i] + (k - 1) * block, slot(i, k - 1, me), std::min(block, recv[i] - (k - 1) * block));
    }
    meeting.publish_done(k);
  }
  meeting.finish();
}

}  // namespace farandole::shared_memory
