#include "native/dataplane/cpu_latency.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

namespace steelyard::dataplane {
namespace {

constexpr const char* kDevice = "/dev/cpu_dma_latency";
constexpr int32_t kNoMatter = 2'000'000'000;  // PM_QOS_CPU_LATENCY_DEFAULT_VALUE

}  // namespace

CpuLatency::CpuLatency(std::optional<uint32_t> most_us) {
  if (!most_us) return;
  most_us_ = static_cast<int32_t>(*most_us);
  fd_ = ::open(kDevice, O_WRONLY | O_CLOEXEC);  // asks for nothing yet; what it asks for ends with it
  if (fd_ >= 0) return;
  throw std::runtime_error(std::string("transport.cpu_latency_us: ") + kDevice + ": " + std::strerror(errno));
}

CpuLatency::~CpuLatency() {
  if (fd_ >= 0) ::close(fd_);
}

void CpuLatency::tick(core::TimeNs now) {
  const bool wanted = fd_ >= 0 && now - last_packet_ < kHold;
  if (wanted == asked_) return;
  asked_ = wanted;
  const int32_t value = wanted ? most_us_ : kNoMatter;
  if (::write(fd_, &value, sizeof value) != sizeof value) asked_ = !wanted;  // at the next tick, then
}

}  // namespace steelyard::dataplane
