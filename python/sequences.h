// The sequences of a call as the C API takes them: from long to short, so many in each timestep.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace prnn_python {

using BatchSizes = std::vector<int>;

struct Sequences {
  Sequences(BatchSizes batch_sizes)  // NOLINT(google-explicit-constructor): Python's lists are sequences, too
      : sizes(std::move(batch_sizes)) {}

  // Sequences of these lengths in padded data of so many timesteps.
  Sequences(const std::vector<int64_t>& lengths, int steps) : padded_steps(steps) {
    int64_t longest = 0;
    for (size_t n = 0; n < lengths.size(); ++n) {
      if (lengths[n] < 1 || lengths[n] > steps)
        throw pybind11::value_error("lengths[" + std::to_string(n) + "] is " + std::to_string(lengths[n]) +
                                    "; it must lie between 1 and the " + std::to_string(steps) + " timesteps of input");
      longest = std::max(longest, lengths[n]);
    }
    sizes.assign(static_cast<size_t>(longest), 0);
    for (const int64_t length : lengths) ++sizes[static_cast<size_t>(length - 1)];
    for (size_t t = sizes.size(); t-- > 1;) sizes[t - 1] += sizes[t];
    if (!std::is_sorted(lengths.rbegin(), lengths.rend())) {
      order.resize(lengths.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int a, int b) { return lengths[static_cast<size_t>(a)] > lengths[static_cast<size_t>(b)]; });
    }
  }

  int steps() const { return static_cast<int>(sizes.size()); }
  int batch() const { return sizes.empty() ? 0 : sizes.front(); }
  int last() const { return sizes.empty() ? 0 : sizes.back(); }
  int64_t rows() const { return std::accumulate(sizes.begin(), sizes.end(), int64_t{0}); }
  bool is_padded() const { return padded_steps > 0 && (steps() < padded_steps || last() < batch()); }
  const int* order_or_null() const { return order.empty() ? nullptr : order.data(); }

  std::vector<int64_t> lengths() const {
    std::vector<int64_t> found(static_cast<size_t>(batch()));
    for (int rank = 0; rank < batch(); ++rank) {
      const auto after = std::find_if(sizes.begin(), sizes.end(), [&](int size) { return size <= rank; });
      found[static_cast<size_t>(order.empty() ? rank : order[static_cast<size_t>(rank)])] = after - sizes.begin();
    }
    return found;
  }

  BatchSizes sizes;        // of each timestep
  std::vector<int> order;  // of padded data, from long to short; empty: as they lie
  int padded_steps = 0;    // timesteps of padded data; 0: the data are packed
};

}  // namespace prnn_python
