#include "cudnn_standin/log.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "cudnn_standin/device.h"

namespace prnn_cudnn {
namespace {

constexpr int kCalls = 4;
constexpr size_t kMostRows = 60;

struct Row {
  std::string configuration, reason;
  size_t count[kCalls] = {}, timed[kCalls] = {};
  double milliseconds[kCalls] = {};

  size_t calls() const { return count[0] + count[1] + count[2] + count[3]; }
  double time() const { return milliseconds[0] + milliseconds[1] + milliseconds[2] + milliseconds[3]; }
};

struct Running {
  device::Stopwatch* stopwatch;
  Row* row;
  Call call;
};

// The empty folder that `prnn run --log` makes for a program, named in the environment as PROCESS:FOLDER with the
// program's first process. The first call that any process logs removes it; where it is left at the end of the first
// process, no call has arrived, which is then said once for all processes.
class Mark {
 public:
  static const Mark& instance() {
    static const Mark* const mark = new Mark;
    return *mark;
  }

  bool remove() const { return !folder_.empty() && rmdir(folder_.c_str()) == 0; }

 private:
  Mark() {
    const char* const value = std::getenv("PRNN_CUDNN_LOG_MARK");
    if (value == nullptr) return;
    char* end = nullptr;
    process_ = std::strtol(value, &end, 10);
    if (*end != ':') return;
    folder_ = end + 1;
    if (getpid() == process_) std::atexit([] { instance().at_exit(); });
  }

  void at_exit() const {
    if (getpid() != process_ || !remove()) return;  // forked processes inherit the function
    std::fprintf(
        stderr,
        "prnn: was loaded, but no call of cuDNN's recurrent layers has arrived on this machine (a program that "
        "loads cuDNN itself needs --front)\n");
  }

  long process_ = 0;
  std::string folder_;
};

[[maybe_unused]] const Mark& mark_at_load = Mark::instance();

class Log {
 public:
  // NULL where no log is wanted.
  static Log* instance() {
    static Log* const log = [] {
      const char* const value = std::getenv("PRNN_CUDNN_LOG");
      if (value == nullptr || std::strcmp(value, "1") != 0) return static_cast<Log*>(nullptr);
      std::atexit([] { instance()->print(); });
      return new Log;
    }();
    return log;
  }

  Row* count(const Configuration& c, const std::string& reason, Call call) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (rows_.empty()) Mark::instance().remove();
    Row& row = rows_[{c.text(), reason}];
    if (row.calls() == 0) row.configuration = c.text(), row.reason = reason;
    ++row.count[static_cast<int>(call)];
    return &row;
  }

  void add(const Running& running) {
    std::lock_guard<std::mutex> lock(mutex_);
    running_.push_back(running);
    collect();
  }

 private:
  void collect() {
    double milliseconds = 0;
    while (!running_.empty() && device::read(running_.front().stopwatch, &milliseconds)) {
      const Running& done = running_.front();
      done.row->milliseconds[static_cast<int>(done.call)] += milliseconds;
      ++done.row->timed[static_cast<int>(done.call)];
      running_.pop_front();
    }
  }

  void print() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (rows_.empty()) return;
    collect();
    std::vector<const Row*> rows;
    for (const auto& [key, row] : rows_) rows.push_back(&row);
    std::stable_sort(rows.begin(), rows.end(), [](const Row* a, const Row* b) { return a->time() > b->time(); });
    std::fprintf(
        stderr,
        "prnn: calls of cuDNN's recurrent layers, and the time on the GPU that those outside of CUDA graphs took\n");
    for (size_t i = 0; i < std::min(rows.size(), kMostRows); ++i) print(*rows[i]);
    if (rows.size() > kMostRows) std::fprintf(stderr, "prnn: and %zu more configurations\n", rows.size() - kMostRows);
  }

  static void print(const Row& row) {
    static const char* const kNames[kCalls] = {"inference", "forward", "backward data", "backward weights"};
    std::string text;
    for (int i = 0; i < kCalls; ++i) {
      if (row.count[i] == 0) continue;
      char piece[128], missing[48] = "";
      const size_t unmeasured = row.count[i] - row.timed[i];
      if (unmeasured > 0) std::snprintf(missing, sizeof missing, ", without %zu of them", unmeasured);
      std::snprintf(piece, sizeof piece, "%s%zu %s (%.3f ms%s)", text.empty() ? "" : ", ", row.count[i], kNames[i],
                    row.milliseconds[i], missing);
      text += piece;
    }
    std::fprintf(stderr, "prnn: %s: %s%s: %s\n", row.configuration.c_str(),
                 row.reason.empty() ? "taken" : "forwarded: ", row.reason.c_str(), text.c_str());
  }

  std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, Row> rows_;
  std::deque<Running> running_;  // in the order of their calls
};

}  // namespace

struct LoggedCall::Entry {
  Running running;
  void* stream;
};

bool LoggedCall::is_wanted() { return Log::instance() != nullptr; }

LoggedCall::LoggedCall(const Configuration& configuration, const std::string& reason, Call call, void* stream) {
  Log* const log = Log::instance();
  if (log == nullptr) return;
  Row* const row = log->count(configuration, reason, call);
  device::Stopwatch* const stopwatch = device::start(stream);
  if (stopwatch != nullptr) entry_ = new Entry{{stopwatch, row, call}, stream};
}

LoggedCall::~LoggedCall() {
  if (entry_ == nullptr) return;
  device::stop(entry_->running.stopwatch, entry_->stream);
  Log::instance()->add(entry_->running);
  delete entry_;
}

}  // namespace prnn_cudnn
