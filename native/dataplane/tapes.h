// Tapes of VIPs: all that their decisions follow from, recorded while they run (native/tape).
#pragma once

#include <list>
#include <string>
#include <vector>

#include "native/dataplane/forwarder.h"
#include "native/tape/recorder.h"

namespace steelyard::dataplane {

class Tapes {
 public:
  struct Ended {
    std::string vip, tape, why;
    uint64_t decisions = 0, digest = 0;
  };

  // Starts the tape of each VIP that names one and has not been asked for it before: a VIP that has just
  // come. What cannot be written is among the next ended().
  void start(Forwarder* forwarder, TimeNs now);
  // What has ended since the last call: by a write that failed, or by a change of the rule, of the policy or
  // of the list of servers, since a tape is of one of each. Decisions go on.
  std::vector<Ended> ended(Forwarder* forwarder);
  // Ends all that still run.
  std::vector<Ended> finish(Forwarder* forwarder);

 private:
  struct Kept {
    std::string vip, path;
    tape::Recorder recorder;
    std::string refused;  // why it never started
    bool told = false;    // that it has ended
    bool gone = false;    // so is its VIP
  };
  Ended close(Kept* kept, const char* why);
  std::list<Kept> kept_;  // a VIP's log is one of them: none moves
};

}  // namespace steelyard::dataplane
