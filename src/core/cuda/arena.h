// Cuts a caller's workspace into arrays. Made with NULL it only counts, so that sizes and pointers come from one place.
#pragma once

#include <cstddef>
#include <cstdint>

namespace prnn {

class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<char*>(base)) {}

  template <class T>
  T* take(int64_t count) {
    const size_t at = (size_ + kAlignment - 1) / kAlignment * kAlignment;
    size_ = at + static_cast<size_t>(count) * sizeof(T);
    return base_ ? reinterpret_cast<T*>(base_ + at) : nullptr;
  }
  size_t size() const { return size_; }

 private:
  static constexpr size_t kAlignment = 16;  // all that callers promise for the base

  char* base_;
  size_t size_ = 0;
};

}  // namespace prnn
