#include "core/cpu/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
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

// Whether processor and compiler know products of pairs of bfloat16 numbers, as fast as float32's. On Intel's
// processors layers of them take twice as long as those of float32's.
bool has_fast_avx512_bfloat16() {
#if __has_include(<avx512bf16intrin.h>)
  constexpr unsigned kBfloat16 = 1u << 5;  // leaf 7, 1, register a
  unsigned a, b, c, d;
  return __builtin_cpu_is("amd") && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & kBfloat16) != 0;
#else
  return false;
#endif
}

// Whether processor and compiler know AMX's products of bfloat16, and the kernel lets this process use the tiles.
bool has_amx() {
#if __has_include(<amxtileintrin.h>)
  constexpr unsigned kBfloat16 = 1u << 22, kTiles = 1u << 24;  // leaf 7, register d
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  unsigned a, b, c, d;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBfloat16) == 0 || (d & kTiles) == 0) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

Isa best_isa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c()) return Isa::kPortable;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (!avx512) return Isa::kAvx2;
  if (has_amx()) return Isa::kAmx;
  return has_fast_avx512_bfloat16() ? Isa::kAvx512Bfloat16 : Isa::kAvx512;
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
  if (wanted == "avx512") return std::min(best_isa(), Isa::kAvx512);
  if (wanted == "avx512_bf16") return std::min(best_isa(), Isa::kAvx512Bfloat16);
  if (wanted == "amx") return best_isa();
  fail(PRNN_STATUS_BAD_PARAM, "PRNN_CPU_ISA is \"%s\"; it must be portable, avx2, avx512, avx512_bf16 or amx", text);
}

}  // namespace

Isa cpu_isa() {
  static const Isa isa = choose_isa();
  return isa;
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kAmx: return "AMX";
    case Isa::kAvx512Bfloat16: return "AVX-512 BF16";
    case Isa::kAvx512: return "AVX-512";
    case Isa::kAvx2: return "AVX2";
    default: return "portable";
  }
}

}  // namespace prnn
