#include "native/dataplane/replay_tape.h"

#include <cstdio>
#include <stdexcept>
#include <vector>

#include "native/dataplane/log.h"
#include "native/tape/replay.h"

namespace steelyard::dataplane {

int replay_tape(const std::string& path, const std::string& policy) {
  std::vector<uint8_t> bytes;
  std::string error;
  std::shared_ptr<const core::LoadedPolicy> hosted;
  if (!policy.empty()) hosted = core::load_policy_file(policy, &error);
  if (!error.empty()) throw std::runtime_error("--policy " + policy + ": " + error);
  tape::Tape tape;
  tape::Replay found;
  if (!tape::read_file(path, &bytes, &error) || !tape::read_tape(bytes.data(), bytes.size(), &tape, &error) ||
      !tape::replay(tape, hosted, &found, &error)) {
    throw std::runtime_error(path + ": " + error);
  }
  const bool same = found.digest == tape.digest;
  const Json told = Json()
                        .add("tape", path)
                        .add("rule", tape.header.rule.traits->name)
                        .add("decisions", found.decisions)
                        .add("different", found.different)
                        .add("digest", hex_of(found.digest))
                        .add("same", same);
  std::puts(told.text().c_str());
  return same ? 0 : 1;
}

}  // namespace steelyard::dataplane
