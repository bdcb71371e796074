// Arrays of a call on padded data, which the library takes packed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "handle.h"
#include "persistent_rnn.h"
#include "sequences.h"

namespace prnn_python {

// States of a call: so many, of N rows each.
struct States {
  int count;
  size_t row;  // bytes
};

// Where the library finds a call's arrays: as they lie, or, of padded data, copied into a buffer from long to short.
class Arrays {
 public:
  Arrays(const Handle& handle, const Sequences& sequences, uintptr_t buffer)
      : handle_(handle), sequences_(sequences), begin_(buffer), end_(buffer), is_padded_(sequences.is_padded()) {}

  size_t bytes_of(const States& states) const {
    return static_cast<size_t>(states.count) * static_cast<size_t>(sequences_.batch()) * states.row;
  }
  static size_t whole(size_t size) { return (size + 255) / 256 * 256; }
  uintptr_t end() const { return end_; }
  size_t size() const { return end_ - begin_; }

  // {timesteps, N, row} with strides in bytes; 0: contiguous.
  uintptr_t rows(uintptr_t given, size_t row, size_t step_stride = 0, size_t sequence_stride = 0) {
    if (given == 0 || !is_padded_) return given;
    if (step_stride == 0) step_stride = (sequence_stride = row) * static_cast<size_t>(sequences_.batch());
    const uintptr_t own = take(static_cast<size_t>(sequences_.rows()) * row);
    pack(sequences_.sizes, given, step_stride, sequence_stride, own, row);
    return own;
  }

  // {count, N, row}.
  uintptr_t states(uintptr_t given, const States& states) {
    if (given == 0 || sequences_.order.empty()) return given;
    const uintptr_t own = take(bytes_of(states));
    const size_t step = states.row * static_cast<size_t>(sequences_.batch());
    pack(all_sequences(states.count), given, step, states.row, own, states.row);
    return own;
  }

  // Likewise arrays that the call writes; finish() brings them to their places.
  uintptr_t new_rows(uintptr_t given, size_t row) {
    if (given == 0 || !is_padded_) return given;
    return written(given, take(static_cast<size_t>(sequences_.rows()) * row), 0, row);
  }
  uintptr_t new_states(uintptr_t given, const States& states) {
    if (given == 0 || sequences_.order.empty()) return given;
    return written(given, take(bytes_of(states)), states.count, states.row);
  }

  void finish() const {
    for (const Written* array = written_.data(); array < written_.data() + count_; ++array) {
      const bool is_state = array->states > 0;
      const BatchSizes sizes = is_state ? all_sequences(array->states) : sequences_.sizes;
      check(prnnUnpackSequences(handle_.get(), static_cast<int>(sizes.size()), sizes.data(), sequences_.order_or_null(),
                                array->row, pointer(array->own), pointer(array->given),
                                is_state ? array->states : sequences_.padded_steps,
                                array->row * static_cast<size_t>(sequences_.batch()), array->row),
            handle_.get());
    }
  }

 private:
  struct Written {
    uintptr_t given, own;
    int states;  // 0: rows
    size_t row;
  };

  uintptr_t take(size_t size) {
    const uintptr_t part = end_;
    end_ += whole(size);
    return part;
  }
  uintptr_t written(uintptr_t given, uintptr_t own, int states, size_t row) {
    written_[static_cast<size_t>(count_++)] = {given, own, states, row};
    return own;
  }
  BatchSizes all_sequences(int count) const { return BatchSizes(static_cast<size_t>(count), sequences_.batch()); }
  void pack(const BatchSizes& sizes, uintptr_t padded, size_t step_stride, size_t sequence_stride, uintptr_t packed,
            size_t row) const {
    check(prnnPackSequences(handle_.get(), static_cast<int>(sizes.size()), sizes.data(), sequences_.order_or_null(),
                            row, pointer(padded), step_stride, sequence_stride, pointer(packed)),
          handle_.get());
  }

  const Handle& handle_;
  const Sequences& sequences_;
  uintptr_t begin_, end_;
  bool is_padded_;
  std::array<Written, 5> written_;  // a backward pass's: dx, dhx and dcx, and those of states at resets
  int count_ = 0;
};

}  // namespace prnn_python
