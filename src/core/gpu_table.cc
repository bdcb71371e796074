#include "core/gpu_table.h"

#include <strings.h>

#include <cctype>
#include <cstring>

namespace prnn {
namespace {

constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB;

// Order matters to match_gpu_row(): longer names before shorter ones, the commonest GPU of an architecture first.
const GpuRow kRows[] = {
    {"H200", 90, 132, 256 * kKiB, 227 * kKiB, 60 * kMiB, {132, 117, 120}, 16, true, true},
    {"H100", 90, 132, 256 * kKiB, 227 * kKiB, 50 * kMiB, {132, 117, 120}, 16, true, true},
    {"B200", 100, 148, 256 * kKiB, 227 * kKiB, 126 * kMiB, {0, 0, 0}, 16, false, false},
    {"RTX 5090", 120, 170, 256 * kKiB, 99 * kKiB, 96 * kMiB, {0, 0, 0}, 8, false, false},
    {"A100", 80, 108, 256 * kKiB, 163 * kKiB, 40 * kMiB, {0, 0, 0}, 1, false, false},
    {"A10", 86, 72, 256 * kKiB, 99 * kKiB, 6 * kMiB, {0, 0, 0}, 1, false, false},
    {"RTX 3090", 86, 82, 256 * kKiB, 99 * kKiB, 6 * kMiB, {0, 0, 0}, 1, false, false},
    {"L40", 89, 142, 256 * kKiB, 99 * kKiB, 96 * kMiB, {0, 0, 0}, 1, false, false},
    {"L4", 89, 58, 256 * kKiB, 99 * kKiB, 48 * kMiB, {0, 0, 0}, 1, false, false},
    {"RTX 4090", 89, 128, 256 * kKiB, 99 * kKiB, 72 * kMiB, {0, 0, 0}, 1, false, false},
    {"TITAN X", 52, 24, 256 * kKiB, 48 * kKiB, 3 * kMiB, {0, 0, 0}, 1, false, false, 1152, 0},
    {"M40", 52, 24, 256 * kKiB, 48 * kKiB, 3 * kMiB, {0, 0, 0}, 1, false, false, 1152, 0},
    {"GTX 1080", 61, 20, 256 * kKiB, 48 * kKiB, 2 * kMiB, {0, 0, 0}, 1, false, false, 1460, 0},
    {"GP100", 60, 56, 256 * kKiB, 48 * kKiB, 4 * kMiB, {0, 0, 0}, 1, false, false, 1880, 2720},
};
constexpr int kRowCount = sizeof kRows / sizeof kRows[0];

bool contains(const char* text, const char* part) {
  const size_t length = std::strlen(part);
  for (; *text != '\0'; ++text) {
    if (strncasecmp(text, part, length) == 0 && std::isalnum(static_cast<unsigned char>(text[length])) == 0)
      return true;
  }
  return false;
}

}  // namespace

int gpu_row_count() { return kRowCount; }

const GpuRow* gpu_row(int index) { return index >= 0 && index < kRowCount ? &kRows[index] : nullptr; }

std::string gpu_row_names() {
  std::string names;
  for (const GpuRow& row : kRows) names += (names.empty() ? "" : ", ") + std::string(row.name);
  return names;
}

const GpuRow* find_gpu_row(const char* name) {
  for (const GpuRow& row : kRows) {
    if (strcasecmp(row.name, name) == 0) return &row;
  }
  return nullptr;
}

const GpuRow* match_gpu_row(const char* device_name, int arch) {
  for (const GpuRow& row : kRows) {
    if (row.arch == arch && contains(device_name, row.name)) return &row;
  }
  for (const GpuRow& row : kRows) {
    if (row.arch == arch) return &row;
  }
  for (const GpuRow& row : kRows) {
    if (row.arch / 10 == arch / 10 && row.arch <= arch && !row.is_legacy()) return &row;
  }
  return nullptr;
}

// 16 with cudaFuncAttributeNonPortableClusterSizeAllowed.
int largest_cluster_of(int arch) { return arch < 90 ? 1 : arch < 120 ? 16 : 8; }

bool has_wgmma_of(int arch) { return arch == 90; }

}  // namespace prnn
