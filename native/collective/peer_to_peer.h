// Collectives in send and recv over links; they run on any transport and between hosts.
// Every function blocks until this rank's part is done and its output is final. All are bit-identical on all members.
#pragma once
#include <cstddef>
#include <vector>

#include "collective/context.h"

namespace farandole::peer_to_peer {

// Ring (Patarasuk & Yuan, 2009): reduce-scatter then allgather, 2(N-1) steps as one continuous stream.
void allreduce(const Context& c, const void* input, void* output, size_t elements, const Reduction& r);
// Adaptive sum (Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2020) over a tree of pairs; any number of members.
void adasum(const Context& c, const void* input, void* output, size_t elements, const Reduction& r);
// counts[i]: elements of member i's part of the result; output has counts[me] elements.
void reducescatter(const Context& c, const void* input, void* output, const std::vector<size_t>& counts, const Reduction& r);
// bytes[i]: bytes of member i's input; output holds all of them in member order.
void allgather(const Context& c, const void* input, void* output, const std::vector<size_t>& bytes);
void broadcast(const Context& c, const void* input, void* output, size_t bytes, int root_index);
// send[i], recv[i]: bytes for and from member i, laid out in member order in input and output.
void alltoall(const Context& c, const void* input, void* output, const std::vector<size_t>& send, const std::vector<size_t>& recv);

}  // namespace farandole::peer_to_peer
