// Links over TCP: one connection for control frames, one for data, so that neither waits for the other.
#pragma once
#include <array>
#include <memory>

#include "os/descriptor.h"
#include "transport/link.h"

namespace farandole {

// Takes over two connected, authenticated, non-blocking sockets.
std::unique_ptr<Link> make_tcp_link(int peer, int control_fd, int data_fd);

}  // namespace farandole
