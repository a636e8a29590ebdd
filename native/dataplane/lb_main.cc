// steelyard-lb: the L4 load balancer (docs/dataplane.md).
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <thread>

#include "native/dataplane/config_file.h"
#include "native/dataplane/control.h"
#include "native/dataplane/log.h"
#include "native/dataplane/metrics.h"
#include "native/dataplane/offline.h"
#include "native/dataplane/replay_tape.h"
#include "native/dataplane/runtime.h"

namespace {

using namespace steelyard::dataplane;

constexpr const char* kUsage =
    "usage: steelyard-lb --config FILE [--check]\n"
    "       steelyard-lb --config FILE --pcap-in FILE --pcap-out FILE [--verdicts FILE]\n"
    "       steelyard-lb --replay TAPE [--policy FILE]\n"
    "\n"
    "  --config FILE     what to balance (docs/dataplane.md)\n"
    "  --check           read the configuration and its policies, say what is wrong, and end\n"
    "  --pcap-in FILE    frames from a file in the place of an interface, with its time\n"
    "  --pcap-out FILE   the frames that would have been sent\n"
    "  --verdicts FILE   what was decided of each frame, one word a line\n"
    "  --replay TAPE     make the decisions of a tape again; status 1 if one differs\n"
    "  --policy FILE     the policy that set its weights\n"
    "\n"
    "SIGHUP: read the configuration again. SIGTERM, SIGINT: end.\n";

struct Options {
  std::string config, pcap_in, pcap_out, verdicts, replay, policy;
  bool check = false;
};

bool parse_options(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    std::string* value = name == "--config"     ? &options->config
                         : name == "--pcap-in"  ? &options->pcap_in
                         : name == "--pcap-out" ? &options->pcap_out
                         : name == "--verdicts" ? &options->verdicts
                         : name == "--replay"   ? &options->replay
                         : name == "--policy"   ? &options->policy
                                                : nullptr;
    if (name == "--check") {
      options->check = true;
    } else if (value == nullptr || i + 1 == argc) {
      return false;
    } else {
      *value = argv[++i];
    }
  }
  if (options->config.empty()) return !options->replay.empty();
  return options->replay.empty() && options->policy.empty() &&
         options->pcap_in.empty() == options->pcap_out.empty();
}

// SIGHUP, SIGTERM and SIGINT come to one thread, which may take its time; no handler runs in the others.
sigset_t block_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGHUP, SIGTERM, SIGINT}) sigaddset(&signals, number);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return signals;
}

int run(const Options& options) {
  const sigset_t signals = block_signals();
  const Config config = read_config(options.config);
  Log log(config.log_file);
  Runtime runtime(config, &log);
  const Control control(config.control_socket, options.config, &runtime);
  const Metrics metrics(config.metrics_listen, &runtime);
  std::thread listener([&] {
    for (int number = 0; sigwait(&signals, &number) == 0;) {
      if (number != SIGHUP) return runtime.stop();
      runtime.reload(options.config);
    }
  });
  log.write("started", Json().add("config", options.config).add("pid", static_cast<int>(::getpid())));
  runtime.run();
  listener.join();
  log.write("stopped", Json());
  return 0;
}

int check(const Options& options) {
  const Config config = read_config(options.config);
  for (const PolicyArtefact& policy : read_policies(config)) {
    if (!policy.error.empty())
      throw std::runtime_error(options.config + ": vip.policy_file: " + policy.error);
  }
  std::printf("%s: %zu VIPs, sound\n", options.config.c_str(), config.vips.size());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse_options(argc, argv, &options)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  try {
    if (!options.replay.empty()) return replay_tape(options.replay, options.policy);
    if (options.check) return check(options);
    if (!options.pcap_in.empty())
      return run_offline(options.config, options.pcap_in, options.pcap_out, options.verdicts);
    return run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "steelyard-lb: error: %s\n", error.what());
    return 2;
  }
}
