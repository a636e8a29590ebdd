// Tapes: any bytes are either refused in one line or replayed, to the end or to a record that is refused in
// one.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "native/tape/replay.h"
#include "native/tape/tape.h"

namespace {

using namespace steelyard;

void require(bool condition) {
  if (!condition) std::abort();
}

void try_tape(const std::vector<uint8_t>& data) {
  tape::Tape tape;
  tape::Replay found;
  std::string error;
  const bool read = tape::read_tape(data.data(), data.size(), &tape, &error);
  if (read && (tape.header.num_servers > 64 || tape.header.flow_table_buckets > 4096)) return;  // too slow
  if (read && tape::replay(tape, nullptr, &found, &error)) {
    require(found.decisions <= tape.num_records && error.empty());
    return;
  }
  require(!error.empty() && std::find(error.begin(), error.end(), '\n') == error.end());
}

// Makes end mark and checksum right again after a change, so that the change itself is what a reader meets.
void seal(std::vector<uint8_t>* data) {
  uint32_t header = 0;
  if (data->size() < tape::kHeaderBytes + 32) return;
  std::memcpy(&header, data->data() + 12, sizeof header);
  if (header % 8 != 0 || header > data->size() - 32) return;
  data->resize(header + (data->size() - header - 8) / 24 * 24 + 8);
  uint8_t* end = data->data() + data->size() - 32;
  const tape::Record mark{static_cast<int64_t>((data->size() - header - 32) / 24), 0,
                          static_cast<uint32_t>(tape::Kind::kEnd), 0};
  std::memcpy(end, &mark, sizeof mark);
  uint64_t sum = 0;
  for (size_t at = 0; at + 8 < data->size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, data->data() + at, sizeof word);
    sum = tape::add_word(sum, word);
  }
  std::memcpy(end + 24, &sum, sizeof sum);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<uint8_t> bytes(data, data + size);
  try_tape(bytes);
  seal(&bytes);  // beyond the checksum
  try_tape(bytes);
  return 0;
}
