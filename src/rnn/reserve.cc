#include "rnn/reserve.h"
#include "core/descriptors.h"
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
  uint64_t offset;         // of the backend's arrays, from the end of the header
  uint64_t extras, masks;  // fingerprints of what prnnSetRNNExtras and prnnSetRNNMasks gave
  uint64_t keeps_gates;
  uint64_t unused;
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
  // An array's contents; NULL is like none other. Word by word, in four sums that do not wait for each other.
  void add(const void* array, size_t bytes) {
    add(array != nullptr);
    if (array == nullptr) return;
    const char* const begin = static_cast<const char*>(array);
    uint64_t sums[4] = {1, 2, 3, 4};
    size_t at = 0;
    for (; at + sizeof sums <= bytes; at += sizeof sums) {
      uint64_t words[4];
      std::memcpy(words, begin + at, sizeof words);
      for (int i = 0; i < 4; ++i) sums[i] = mixed(sums[i], words[i]);
    }
    for (; at < bytes; ++at) sums[0] = mixed(sums[0], static_cast<unsigned char>(begin[at]));
    for (const uint64_t sum : sums) add(sum);
  }
  uint64_t value() const { return value_; }

 private:
  // Rotated, since a product's upper bits do not reach its lower ones.
  static uint64_t mixed(uint64_t sum, uint64_t word) {
    const uint64_t product = (sum ^ word) * 0x9e3779b97f4a7c15;
    return product << 29 | product >> 35;
  }

  uint64_t value_ = 0xcbf29ce484222325;
};

// The fingerprint of the layer and its sizes.
uint64_t fingerprint(const RnnProblem& problem) {
  uint32_t dropout;
  std::memcpy(&dropout, &problem.dropout.probability, sizeof dropout);
  Fingerprint print;
  for (int64_t value :
       {int64_t{problem.mode}, int64_t{problem.type}, problem.hidden, problem.projection, problem.input, problem.layers,
        problem.directions, problem.heads, problem.frozen, int64_t{problem.skip_input}, int64_t{problem.gates_input},
        int64_t{problem.reverse}, int64_t{problem.normalize}, int64_t{dropout}, problem.steps()}) {
    print.add(static_cast<uint64_t>(value));
  }
  for (int64_t batch : problem.batch) print.add(static_cast<uint64_t>(batch));
  return print.value();
}

// Bytes of hx, of a state of cx, which has no projection, and of a recurrent mask.
size_t state_bytes(const RnnProblem& problem, int64_t width) {
  return static_cast<size_t>(problem.layers * problem.recurrences() * problem.max_batch() * width) *
         type_size(problem.type);
}

// The fingerprint of the extras that the forward call read; the others belong to one call.
uint64_t fingerprint_of_extras(const RnnProblem& problem) {
  const prnnRNNExtras_t& extras = problem.extras;
  Fingerprint print;
  print.add(extras.reset, static_cast<size_t>(problem.rows));
  print.add(extras.resetHx, state_bytes(problem, problem.state()));
  print.add(extras.resetCx, state_bytes(problem, problem.cell_states() * problem.hidden));
  return print.value();
}

uint64_t fingerprint_of_masks(const RnnProblem& problem) {
  const prnnRNNMasks_t& masks = problem.masks;
  uint64_t expectation;
  std::memcpy(&expectation, &masks.zoneoutExpectation, sizeof expectation);
  Fingerprint print;
  print.add(expectation);
  print.add(masks.recurrent, state_bytes(problem, problem.hidden));
  print.add(masks.zoneout != nullptr);  // the gates that were kept have its contents
  return print.value();
}

void require_stamp(const ReserveHeader& header, const RnnProblem& problem, TrainingStage stage) {
  if (header.magic != kMagic || header.offset >= Carver::kAlign) {
    fail(PRNN_STATUS_BAD_PARAM, "reserveSpace was not filled by prnnRNNForwardTraining");
  }
  if (header.fingerprint != fingerprint(problem)) {
    fail(PRNN_STATUS_BAD_PARAM,
         "reserveSpace was filled by prnnRNNForwardTraining for another layer or other sizes than those of this call");
  }
  const char* changed = nullptr;
  if (header.masks != fingerprint_of_masks(problem)) changed = "masks (prnnSetRNNMasks)";
  if (header.extras != fingerprint_of_extras(problem)) changed = "extras (reset, resetHx or resetCx; prnnSetRNNExtras)";
  if (changed != nullptr) {
    fail(PRNN_STATUS_BAD_PARAM,
         "reserveSpace was filled by prnnRNNForwardTraining with other %s than those of this call; the calls of a "
         "training step want the same ones",
         changed);
  }
  if (header.stage < stage)
    fail(PRNN_STATUS_BAD_PARAM, "prnnRNNBackwardData has not been called with this reserveSpace");
  if (stage == TrainingStage::kForward && header.stage > stage && header.keeps_gates == 0) {
    fail(PRNN_STATUS_BAD_PARAM,
         "prnnRNNBackwardData has been called with this reserveSpace and has written gradients over the gates in it; "
         "call prnnRNNForwardTraining again, or give the calls a reserveSpace of prnnGetRNNTrainingReserveSize bytes");
  }
}

}  // namespace

size_t reserve_header_size(const prnnContext& context) { return context.is_cpu() ? sizeof(ReserveHeader) : 0; }

void stamp_reserve(const prnnContext& context, void* reserve, const RnnProblem& problem, TrainingStage stage,
                   bool keeps_gates) {
  if (!context.is_cpu()) return;
  const ReserveHeader header{kMagic,
                             fingerprint(problem),
                             stage,
                             Carver::offset(after_header(reserve)),
                             fingerprint_of_extras(problem),
                             fingerprint_of_masks(problem),
                             keeps_gates,
                             0};
  std::memcpy(reserve, &header, sizeof header);
}

bool open_reserve(prnnHandle_t handle, const RnnBackend& backend, const RnnProblem& problem, void* reserve, size_t size,
                  TrainingStage stage) {
  ReserveHeader header;
  std::memcpy(&header, reserve, sizeof header);
  require_stamp(header, problem, stage);
  const bool keeps_gates = header.keeps_gates != 0;
  const size_t arrays = backend.reserve_size(handle, problem, keeps_gates);
  if (size < sizeof header + arrays) {
    fail(PRNN_STATUS_BAD_PARAM,
         "reserveSpaceSizeInBytes is %zu, less than the %zu bytes of this reserveSpace that prnnRNNForwardTraining has "
         "filled",
         size, sizeof header + arrays);
  }
  char* const base = static_cast<char*>(after_header(reserve));
  const uint64_t offset = Carver::offset(base);
  if (header.offset == offset) return keeps_gates;
  std::memmove(base + offset, base + header.offset, arrays - Carver::kAlign);
  header.offset = offset;
  std::memcpy(reserve, &header, sizeof header);
  return keeps_gates;
}

}  // namespace prnn
