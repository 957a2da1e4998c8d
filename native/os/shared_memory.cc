#include "os/shared_memory.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace farandole {
namespace {

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

char* map(int fd, size_t bytes) {
  int flags = MAP_NORESERVE | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (p == MAP_FAILED) fail("mapping the arena (is the address space limited? see FARANDOLE_ARENA_BYTES)");
  madvise(p, bytes, MADV_DONTDUMP);  // a core file of one rank should not hold the address space of all
  return static_cast<char*>(p);
}

}  // namespace

int SharedMemory::create(size_t bytes) {
  int fd = memfd_create("farandole", MFD_CLOEXEC);
  if (fd < 0) fail("memfd_create");
  if (ftruncate(fd, static_cast<off_t>(bytes)) < 0) {
    int e = errno;
    ::close(fd);
    errno = e;
    fail("ftruncate of the arena");
  }
  return fd;
}

SharedMemory::SharedMemory(int fd) {
  struct stat st;
  if (fstat(fd, &st) < 0) fail("fstat of a peer's arena");
  size_ = static_cast<size_t>(st.st_size);
  data_ = map(fd, size_);
}

SharedMemory::SharedMemory(size_t bytes) : data_(map(-1, bytes)), size_(bytes) {}

SharedMemory::~SharedMemory() { munmap(data_, size_); }

void SharedMemory::give_back(size_t offset, size_t bytes) {
  // MADV_REMOVE frees a memfd's pages; anonymous memory answers EINVAL and takes MADV_DONTNEED.
  if (madvise(data_ + offset, bytes, MADV_REMOVE) < 0) madvise(data_ + offset, bytes, MADV_DONTNEED);
}

}  // namespace farandole
