#include "rnn/cpu/dropout.h"

#include <algorithm>

namespace prnn {
namespace {

constexpr int64_t kWords = 4;

template <class T>
T dropout_scale(float probability) {
  return T(1) / (T(1) - static_cast<T>(probability));
}

}  // namespace

PhiloxBlock philox(PhiloxBlock counter, uint32_t key0, uint32_t key1) {
  uint32_t* c = counter.word;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * c[0], product1 = uint64_t{0xCD9E8D57} * c[2];
    const uint32_t next[] = {static_cast<uint32_t>(product1 >> 32) ^ c[1] ^ key0, static_cast<uint32_t>(product1),
                             static_cast<uint32_t>(product0 >> 32) ^ c[3] ^ key1, static_cast<uint32_t>(product0)};
    std::copy(next, next + 4, c);
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

template <class T>
void draw_dropout(const Team& team, const DropoutMask& mask, int64_t count, const T* in, uint8_t* bits, T* out) {
  const T scale = dropout_scale<T>(mask.probability);
  const uint32_t threshold = static_cast<uint32_t>(mask.probability * 4294967296.0);
  const Range blocks = team.share_of((count + kWords - 1) / kWords);
  for (int64_t block = blocks.begin; block < blocks.end; ++block) {
    const PhiloxBlock counter = {{static_cast<uint32_t>(block),
                                  static_cast<uint32_t>(block >> 32) | static_cast<uint32_t>(mask.layer << 16),
                                  static_cast<uint32_t>(mask.call), static_cast<uint32_t>(mask.call >> 32)}};
    const PhiloxBlock random =
        philox(counter, static_cast<uint32_t>(mask.seed), static_cast<uint32_t>(mask.seed >> 32));
    const int64_t end = std::min(kWords, count - block * kWords);
    for (int64_t i = 0; i < end; ++i) {
      const bool keep = random.word[i] >= threshold;
      if (bits != nullptr) bits[block * kWords + i] = keep;
      out[block * kWords + i] = keep ? in[block * kWords + i] * scale : T(0);
    }
  }
}

template <class T>
void apply_dropout(const Team& team, float probability, int64_t count, const T* in, const uint8_t* bits, T* out) {
  const T scale = dropout_scale<T>(probability);
  const Range range = team.share_of(count);
  for (int64_t i = range.begin; i < range.end; ++i) out[i] = bits[i] ? in[i] * scale : T(0);
}

template void draw_dropout<float>(const Team&, const DropoutMask&, int64_t, const float*, uint8_t*, float*);
template void draw_dropout<double>(const Team&, const DropoutMask&, int64_t, const double*, uint8_t*, double*);
template void apply_dropout<float>(const Team&, float, int64_t, const float*, const uint8_t*, float*);
template void apply_dropout<double>(const Team&, float, int64_t, const double*, const uint8_t*, double*);

}  // namespace prnn
