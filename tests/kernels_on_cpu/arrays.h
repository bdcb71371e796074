// Arrays of the kernels' element types, and how results compare with those of a reference in double.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

enum class Type { kFloat, kTf32, kHalf, kBfloat16 };  // in the order of prnn::Types
inline int bytes_of(Type type) { return type == Type::kFloat || type == Type::kTf32 ? 4 : 2; }

inline double normal() {
  static std::mt19937 bits(7);
  static std::normal_distribution<double> distribution;
  return distribution(bits);
}

// In memory, or, as a factor, in a product.
inline double rounded(Type type, double value, bool is_factor) {
  const auto number = static_cast<float>(value);
  if (type == Type::kHalf) return static_cast<float>(__half(number));
  if (type == Type::kBfloat16) return static_cast<float>(__nv_bfloat16(number));
  if (type == Type::kFloat || !is_factor) return number;
  uint32_t bits;
  std::memcpy(&bits, &number, 4);
  bits = (bits + 0x1000) & 0xFFFFE000;
  float found;
  std::memcpy(&found, &bits, 4);
  return found;
}

// Exactly as long as it says, so that AddressSanitizer sees what goes beyond. Random numbers of this scale; `fill`: all
// bytes.
class Array {
 public:
  Array(Type type, size_t size, double scale = 1) : Array(type, bytes_of(type) * size, '\0', 0) {
    for (size_t i = 0; i < size; ++i) set(i, scale * normal());
  }
  static Array of_bytes(size_t bytes, int fill) { return Array(Type::kFloat, bytes, '\0', fill); }

  double operator[](size_t i) const {
    const char* const at = memory_.get() + bytes_of(type_) * i;
    if (bytes_of(type_) == 4) return *reinterpret_cast<const float*>(at);
    if (type_ == Type::kHalf) return static_cast<float>(*reinterpret_cast<const __half*>(at));
    return static_cast<float>(*reinterpret_cast<const __nv_bfloat16*>(at));
  }
  void set(size_t i, double value) {
    char* const at = memory_.get() + bytes_of(type_) * i;
    if (bytes_of(type_) == 4) {
      *reinterpret_cast<float*>(at) = static_cast<float>(value);
    } else if (type_ == Type::kHalf) {
      *reinterpret_cast<__half*>(at) = __half(static_cast<float>(value));
    } else {
      *reinterpret_cast<__nv_bfloat16*>(at) = __nv_bfloat16(static_cast<float>(value));
    }
  }
  void fill(int byte) { std::memset(memory_.get(), byte, bytes_); }
  char* data() { return memory_.get(); }
  size_t bytes() const { return bytes_; }
  float* floats() { return reinterpret_cast<float*>(memory_.get()); }

 private:
  Array(Type type, size_t bytes, char, int fill) : type_(type), bytes_(bytes) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 256, bytes) != 0) std::abort();
    std::memset(memory, fill, bytes);
    memory_.reset(static_cast<char*>(memory));
  }
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  Type type_;
  size_t bytes_;
  std::unique_ptr<char, Free> memory_;
};

// Prints the relative error of a result.
struct Comparison {
  const char* name;
  double error = 0, norm = 0;

  void add(double found, double expected) {
    error += (found - expected) * (found - expected);
    norm += expected * expected;
  }
  ~Comparison() {
    if (norm > 0) std::printf("%s %.3e\n", name, std::sqrt(error / norm));
  }
};
