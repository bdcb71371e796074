#include "rnn/reserve.h"
#include "core/handle.h"
#include "rnn/cpu/buffers.h"

#include <cstring>

namespace prnn {
namespace {

constexpr uint64_t kMagic = 0x766573657250524e;

struct ReserveHeader {
  uint64_t magic;
  uint64_t fingerprint;
  TrainingStage stage;
  uint64_t offset;  // of the backend's arrays, from the end of the header
  uint64_t unused[4];
};
static_assert(sizeof(ReserveHeader) == 64, "the backend's part stays aligned to a cache line");

void* after_header(void* reserve) { return static_cast<char*>(reserve) + sizeof(ReserveHeader); }

// FNV-1a over everything that the contents of the reserve space depend on.
class Fingerprint {
 public:
  void add(uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) {
      value_ = (value_ ^ ((value >> (8 * byte)) & 0xff)) * 0x100000001b3;
    }
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325;
};

uint64_t fingerprint(const RnnProblem& problem) {
  uint32_t dropout;
  std::memcpy(&dropout, &problem.dropout.probability, sizeof dropout);
  Fingerprint print;
  for (int64_t value :
       {int64_t{problem.mode}, int64_t{problem.type}, problem.hidden, problem.projection, problem.input, problem.layers,
        problem.directions, problem.heads, int64_t{problem.skip_input}, int64_t{dropout}, problem.steps()}) {
    print.add(static_cast<uint64_t>(value));
  }
  for (int64_t batch : problem.batch) print.add(static_cast<uint64_t>(batch));
  return print.value();
}

}  // namespace

size_t reserve_header_size(const prnnContext& context) { return context.is_cpu() ? sizeof(ReserveHeader) : 0; }

void stamp_reserve(const prnnContext& context, void* reserve, const RnnProblem& problem, TrainingStage stage) {
  if (!context.is_cpu()) return;
  const ReserveHeader header{kMagic, fingerprint(problem), stage, Carver::offset(after_header(reserve)), {}};
  std::memcpy(reserve, &header, sizeof header);
}

void require_stage(const prnnContext& context, const void* reserve, const RnnProblem& problem, TrainingStage stage) {
  if (!context.is_cpu()) return;
  ReserveHeader header;
  std::memcpy(&header, reserve, sizeof header);
  if (header.magic != kMagic || header.offset >= Carver::kAlign) {
    fail(PRNN_STATUS_BAD_PARAM, "reserveSpace was not filled by prnnRNNForwardTraining");
  }
  if (header.fingerprint != fingerprint(problem)) {
    fail(PRNN_STATUS_BAD_PARAM,
         "reserveSpace was filled by prnnRNNForwardTraining for another layer or other sizes than those of this call");
  }
  if (header.stage < stage)
    fail(PRNN_STATUS_BAD_PARAM, "prnnRNNBackwardData has not been called with this reserveSpace");
}

void settle_reserve(prnnHandle_t handle, const RnnBackend& backend, const RnnProblem& problem, void* reserve) {
  if (!handle->is_cpu()) return;
  ReserveHeader header;
  std::memcpy(&header, reserve, sizeof header);
  char* const base = static_cast<char*>(after_header(reserve));
  const uint64_t offset = Carver::offset(base);
  if (header.offset == offset) return;
  std::memmove(base + offset, base + header.offset, backend.reserve_size(handle, problem, false) - Carver::kAlign);
  header.offset = offset;
  std::memcpy(reserve, &header, sizeof header);
}

}  // namespace prnn
