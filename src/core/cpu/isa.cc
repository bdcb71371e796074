#include "core/cpu/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <string>

#include "core/status.h"

namespace prnn {
namespace {

#if defined(__x86_64__)
// Conversions of float16; __builtin_cpu_supports() knows the name from GCC 11 on.
bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

Isa best_isa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c()) return Isa::kPortable;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return avx512 ? Isa::kAvx512 : Isa::kAvx2;
#else
  return Isa::kPortable;
#endif
}

Isa choose_isa() {
  const char* text = std::getenv("PRNN_CPU_ISA");
  const std::string wanted = text == nullptr ? "" : text;
  if (wanted.empty()) return best_isa();
  if (wanted == "portable") return Isa::kPortable;
  if (wanted == "avx2") return std::min(best_isa(), Isa::kAvx2);
  if (wanted == "avx512") return best_isa();
  fail(PRNN_STATUS_BAD_PARAM, "PRNN_CPU_ISA is \"%s\"; it must be portable, avx2 or avx512", text);
}

}  // namespace

Isa cpu_isa() {
  static const Isa isa = choose_isa();
  return isa;
}

const char* isa_name(Isa isa) { return isa == Isa::kAvx512 ? "AVX-512" : isa == Isa::kAvx2 ? "AVX2" : "portable"; }

}  // namespace prnn
