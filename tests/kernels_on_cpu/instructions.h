// The PTX statements of translate.py: ptx(gpu::<name>(), outputs..., inputs...).
#pragma once

#include "products.h"

namespace gpu {

// clang-format off
struct nothing {}; struct unknown {};
struct load_acquired {}; template <int BYTES> struct load {}; template <int BYTES> struct load_if {}; struct load2_or_zeros {};
struct load4_or_zeros {}; struct load4_if {}; struct reload4 {};
struct load_real_if {};
struct store {}; struct store_if {}; struct store2 {}; struct store2_if {}; struct store4 {}; struct store4_if {};
struct increment {};
struct store_long {}; struct store_longs {}; struct load_longs {};
struct load_shared {}; struct load_shared2 {}; struct load_shared4 {}; struct poll_shared {}; struct poll_shared2 {}; struct poll_shared4 {};
struct store_shared {}; struct store_shared_if {}; struct store_to_block2 {}; struct store_to_block4 {};
struct store_shared_half {}; struct store_shared2 {}; struct store_shared4 {}; struct store_shared4_if {};
struct load_matrices_of {}; struct load_transposed {}; struct store_transposed {};
template <int BYTES> struct copy {}; struct copy16 {}; struct copy16_if {}; struct commit_copies {}; struct wait_for_copies {};
template <int THREADS> struct sync {}; template <int THREADS> struct arrive_and_go {}; struct sync_cluster {};
struct arrive_at_cluster {}; struct wait_for_cluster {};
struct sync_of {}; struct sync_or {}; struct arrive_of {};
struct cluster_rank {}; struct map_address {};
struct init_barrier {}; struct expect_bytes {}; struct arrive {}; struct test_barrier {}; struct test_barrier_now {};
struct wait_at_barrier {};
struct bulk {}; struct bulk_here {}; struct bulk_out {}; struct send {};
struct commit_products {}; struct wait_for_products {}; struct mma_half {}; struct mma_bfloat16 {}; struct mma_tf32 {};
struct low_part {}; struct round_to_tf32 {}; struct exp2 {}; struct log2 {}; struct tangent {}; struct reciprocal {}; struct copy_register {};
struct read_timer {}; struct read_clock {}; struct lane_id {};
// clang-format on

// At once or later: `to` is the address in a block of the cluster, whose barrier counts the bytes.
template <class Data>
PRNN_IN_CALLER void send_bytes(uint32_t to, uint32_t barrier, int bytes, const Data& data_at) {
  at(to + bytes - 4, 4);
  char* const place = at(to, 4);
  Mbarrier* const count = &mbarrier(barrier);
  const Block* const block = &block_of(to);
  const order::Clocks issued = order::begin_counted(count->order, count->phase, place, data_at(), bytes);
  const auto act = [=] {
    if (block->running == 0) fail("a block has ended before what is sent to it arrives");
    order::copy(place, data_at(), bytes);
    order::end_counted(count->order, issued);
    count->bytes -= bytes;
    count->check();
  };
  if (one_in(2)) return act();
  in_flight.push_back(act);
}
template <class... Words>
PRNN_IN_CALLER void send_words(uint32_t to, uint32_t barrier, Words... words) {
  struct {
    uint32_t all[sizeof...(words)];
  } const data{{bits_as<uint32_t>(words)...}};
  if (to % sizeof data != 0) fail("what is sent to a block is not aligned");
  send_bytes(to, barrier, sizeof data, [data] { return &data; });
}
PRNN_IN_CALLER void copy_now_or_later(uint32_t to, const void* from, int size, int bytes) {
  if (bytes > 0 && reinterpret_cast<uintptr_t>(from) % size != 0) fail("a copy's source is not aligned");
  char* const place = at(to, size);
  order::begin_copy(place, size, from, bytes > 0 ? size : 0, current->copy_groups);
  issue(current->copies, current->copy_groups, [=] {
    order::fill(place, 0, size);
    if (bytes > 0) order::copy(place, from, bytes);
  });
}

template <int BYTES>
PRNN_IN_CALLER void load_words(const void* from, uint32_t (&words)[BYTES / 4]) {
  may_yield();
  if (reinterpret_cast<uintptr_t>(from) % BYTES != 0) fail("a load is not aligned");
  order::load_words(from, BYTES);
  order::copy(words, from, BYTES);
}
template <class... Words>
PRNN_IN_CALLER void store_words(const void* to, Words... values) {
  may_yield();
  const uint32_t words[] = {bits_as<uint32_t>(values)...};
  if (reinterpret_cast<uintptr_t>(to) % sizeof words != 0) fail("a store is not aligned");
  order::copy(const_cast<void*>(to), words, sizeof words);
  order::store_words(to, sizeof words);
}
template <class... Words>
PRNN_IN_CALLER void store_shared_words(uint32_t to, Words... values) {
  may_yield();
  const uint32_t words[] = {bits_as<uint32_t>(values)...};
  std::memcpy(at(to, sizeof words), words, sizeof words);
}

// At once or later, before the thread's next barrier of the cluster.
template <class... Words>
PRNN_IN_CALLER void store_to_block(uint32_t to, Words... values) {
  may_yield();
  struct {
    uint32_t all[sizeof...(values)];
  } const data{{bits_as<uint32_t>(values)...}};
  char* const place = at(to, sizeof data);
  if (order::kOn || one_in(2)) {
    order::copy(place, &data, sizeof data);
    return order::store_words(place, sizeof data);
  }
  Thread* const thread = current;
  const Block* const block = &block_of(to);
  ++thread->stores;
  in_flight.push_back([=] {
    if (block->running == 0) fail("a block has ended before what is stored to it arrives");
    std::memcpy(place, &data, sizeof data);
    --thread->stores;
  });
}

}  // namespace gpu

template <class... Operands>
PRNN_IN_CALLER void ptx(gpu::nothing, Operands&&...) {}
template <class... Operands>
PRNN_IN_CALLER void ptx(gpu::unknown, Operands&&...) {
  gpu::fail("an instruction that translate.py does not know");
}

// ---- global memory ----

template <int BYTES, class V>
PRNN_IN_CALLER void ptx(gpu::load<BYTES>, V& value, const void* from) {
  static_assert(BYTES <= sizeof value);
  gpu::may_yield();
  value = 0;
  order::load_words(from, BYTES);
  order::copy(&value, from, BYTES);
}
PRNN_IN_CALLER void ptx(gpu::load_acquired, unsigned& value, const void* from) {
  ptx(gpu::load<4>(), value, from);
  order::acquire_counter(from);
}
template <int BYTES>
PRNN_IN_CALLER void ptx(gpu::load_if<BYTES>, uint32_t& value, uint32_t wanted, const void* from) {
  value = 0;
  if (wanted) ptx(gpu::load<BYTES>(), value, from);
}
PRNN_IN_CALLER void ptx(gpu::load_if<1>, uint32_t& value, const uint8_t* from, uint32_t wanted) {
  ptx(gpu::load_if<1>(), value, wanted, static_cast<const void*>(from));
}
PRNN_IN_CALLER void ptx(gpu::load2_or_zeros, uint32_t& x, uint32_t& y, uint32_t wanted, const void* from) {
  uint32_t v[2] = {};
  if (wanted) gpu::load_words<8>(from, v);
  x = v[0], y = v[1];
}
PRNN_IN_CALLER void ptx(gpu::load4_or_zeros, uint32_t& x, uint32_t& y, uint32_t& z, uint32_t& w, uint32_t wanted,
                        const void* from) {
  uint32_t v[4] = {};
  if (wanted) gpu::load_words<16>(from, v);
  x = v[0], y = v[1], z = v[2], w = v[3];
}
PRNN_IN_CALLER void ptx(gpu::load4_if, uint32_t& x, uint32_t& y, uint32_t& z, uint32_t& w, uint32_t wanted,
                        const void* from) {
  if (wanted) ptx(gpu::load4_or_zeros(), x, y, z, w, wanted, from);
}
PRNN_IN_CALLER void ptx(gpu::reload4, uint32_t& x, uint32_t& y, uint32_t& z, uint32_t& w, uint32_t largest,
                        const void* from) {
  if (largest == 0xFFFFFFFF) ptx(gpu::load4_or_zeros(), x, y, z, w, 1, from);
}
template <class V>
PRNN_IN_CALLER void ptx(gpu::load_real_if, V& value, const V* from, int wanted) {
  gpu::may_yield();
  if (wanted) order::copy(&value, from, sizeof value);
}
template <class V>
PRNN_IN_CALLER void ptx(gpu::store_if, const void* to, V value, uint32_t wanted) {
  gpu::may_yield();
  if (!wanted) return;
  order::copy(const_cast<void*>(to), &value, sizeof value);
  order::store_words(to, sizeof value);
}
PRNN_IN_CALLER void ptx(gpu::store2, const void* to, uint32_t x, uint32_t y) { gpu::store_words(to, x, y); }
PRNN_IN_CALLER void ptx(gpu::store2_if, const void* to, uint32_t x, uint32_t y, uint32_t wanted) {
  if (wanted) gpu::store_words(to, x, y);
}
PRNN_IN_CALLER void ptx(gpu::store4, const void* to, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  gpu::store_words(to, x, y, z, w);
}
PRNN_IN_CALLER void ptx(gpu::store4_if, const void* to, uint32_t x, uint32_t y, uint32_t z, uint32_t w,
                        uint32_t wanted) {
  if (wanted) gpu::store_words(to, x, y, z, w);
}
PRNN_IN_CALLER void ptx(gpu::increment, unsigned* counter) {
  gpu::may_yield();
  order::release_counter(counter);
  unsigned count;
  order::copy(&count, counter, sizeof count);
  ++count;
  order::copy(counter, &count, sizeof count);
}

PRNN_IN_CALLER void ptx(gpu::store_long, const void* to, unsigned long long value) {
  gpu::store_words(to, static_cast<uint32_t>(value), static_cast<uint32_t>(value >> 32));
}
PRNN_IN_CALLER void ptx(gpu::store_longs, const void* to, unsigned long long low, unsigned long long high) {
  gpu::store_words(to, static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high),
                   static_cast<uint32_t>(high >> 32));
}
PRNN_IN_CALLER void ptx(gpu::load_longs, unsigned long long& low, unsigned long long& high, const void* from) {
  uint32_t words[4];
  gpu::load_words<16>(from, words);
  low = uint64_t{words[1]} << 32 | words[0];
  high = uint64_t{words[3]} << 32 | words[2];
}

// ---- shared memory ----

template <class V>
PRNN_IN_CALLER void ptx(gpu::load_shared, V& value, uint32_t from) {
  gpu::may_yield();
  std::memcpy(&value, gpu::at(from, sizeof value), sizeof value);
}
template <class Word>
PRNN_IN_CALLER void ptx(gpu::load_shared2, Word& x, Word& y, uint32_t from) {
  struct {
    Word words[2];
  } v;
  ptx(gpu::load_shared(), v, from);
  x = v.words[0], y = v.words[1];
}
template <class Word>
PRNN_IN_CALLER void ptx(gpu::load_shared4, Word& x, Word& y, Word& z, Word& w, uint32_t from) {
  struct {
    Word words[4];
  } v;
  ptx(gpu::load_shared(), v, from);
  x = v.words[0], y = v.words[1], z = v.words[2], w = v.words[3];
}
// Stores words into another block's memory.
template <class... Words>
PRNN_IN_CALLER void poll_shared_words(uint32_t from, Words&... words) {
  if (gpu::one_in(2)) gpu::yield();
  uint32_t values[sizeof...(words)];
  const char* const place = gpu::at(from, sizeof values);
  order::load_words(place, sizeof values);
  order::copy(values, place, sizeof values);
  int i = 0;
  ((words = __uint_as_float(values[i++])), ...);
}
PRNN_IN_CALLER void ptx(gpu::poll_shared, float& x, uint32_t from) { poll_shared_words(from, x); }
PRNN_IN_CALLER void ptx(gpu::poll_shared2, float& x, float& y, uint32_t from) { poll_shared_words(from, x, y); }
PRNN_IN_CALLER void ptx(gpu::poll_shared4, float& x, float& y, float& z, float& w, uint32_t from) {
  poll_shared_words(from, x, y, z, w);
}
template <class V>
PRNN_IN_CALLER void ptx(gpu::store_shared, uint32_t to, V value) {
  gpu::may_yield();
  std::memcpy(gpu::at(to, sizeof value), &value, sizeof value);
}
template <class V>
PRNN_IN_CALLER void ptx(gpu::store_shared_if, uint32_t to, V value, uint32_t wanted) {
  if (wanted) ptx(gpu::store_shared(), to, value);
}
PRNN_IN_CALLER void ptx(gpu::store_shared_half, uint32_t to, uint32_t word) {
  ptx(gpu::store_shared(), to, static_cast<uint16_t>(word));
}
PRNN_IN_CALLER void ptx(gpu::store_shared2, uint32_t to, uint32_t x, uint32_t y) { gpu::store_shared_words(to, x, y); }
PRNN_IN_CALLER void ptx(gpu::store_shared4, uint32_t to, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  gpu::store_shared_words(to, x, y, z, w);
}
PRNN_IN_CALLER void ptx(gpu::store_shared4_if, uint32_t to, float x, float y, float z, float w, uint32_t wanted) {
  if (wanted) gpu::store_shared_words(to, x, y, z, w);
}
PRNN_IN_CALLER void ptx(gpu::store_to_block2, uint32_t to, float x, float y) { gpu::store_to_block(to, x, y); }
PRNN_IN_CALLER void ptx(gpu::store_to_block4, uint32_t to, float x, float y, float z, float w) {
  gpu::store_to_block(to, x, y, z, w);
}
PRNN_IN_CALLER void ptx(gpu::load_matrices_of, uint32_t& x, uint32_t& y, uint32_t& z, uint32_t& w, uint32_t from) {
  const gpu::Fragment v = gpu::load_matrices(from, false);
  x = v.words[0], y = v.words[1], z = v.words[2], w = v.words[3];
}
PRNN_IN_CALLER void ptx(gpu::load_transposed, uint32_t& x, uint32_t& y, uint32_t& z, uint32_t& w, uint32_t from) {
  const gpu::Fragment v = gpu::load_matrices(from, true);
  x = v.words[0], y = v.words[1], z = v.words[2], w = v.words[3];
}
PRNN_IN_CALLER void ptx(gpu::store_transposed, uint32_t to, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  const uint32_t words[4] = {x, y, z, w};
  gpu::access_matrices(to, true, [&](char* place, int matrix, int i) {
    std::memcpy(place, reinterpret_cast<const char*>(&words[matrix]) + 2 * i, 2);
  });
}

template <int BYTES>
PRNN_IN_CALLER void ptx(gpu::copy<BYTES>, uint32_t to, const void* from, int bytes) {
  gpu::copy_now_or_later(to, from, BYTES, bytes);
}
PRNN_IN_CALLER void ptx(gpu::copy16, uint32_t to, const void* from) { gpu::copy_now_or_later(to, from, 16, 16); }
PRNN_IN_CALLER void ptx(gpu::copy16_if, uint32_t wanted, uint32_t to, const void* from) {
  if (wanted) gpu::copy_now_or_later(to, from, 16, 16);
}
PRNN_IN_CALLER void ptx(gpu::commit_copies) { ++gpu::current->copy_groups; }
PRNN_IN_CALLER void ptx(gpu::wait_for_copies, int left) {
  const long group = gpu::current->copy_groups - left;
  gpu::finish(gpu::current->copies, group);
  order::end_copies(group);
}
PRNN_IN_CALLER void ptx(gpu::wait_for_copies) {
  ++gpu::current->copy_groups;
  ptx(gpu::wait_for_copies(), 0);
}

// ---- barriers and clusters ----

template <int THREADS>
PRNN_IN_CALLER void ptx(gpu::sync<THREADS>, int barrier) {
  gpu::join(gpu::current->block->barriers[barrier], THREADS, true);
}
template <int THREADS>
PRNN_IN_CALLER void ptx(gpu::arrive_and_go<THREADS>, int barrier) {
  gpu::join(gpu::current->block->barriers[barrier], THREADS, false);
}
PRNN_IN_CALLER void ptx(gpu::sync_of, int barrier, int threads) {
  gpu::join_or(gpu::current->block->barriers[barrier], threads, false);
}
PRNN_IN_CALLER void ptx(gpu::sync_or, uint32_t& any, uint32_t value, int barrier, int threads) {
  any = gpu::join_or(gpu::current->block->barriers[barrier], threads, value != 0);
}
PRNN_IN_CALLER void ptx(gpu::arrive_of, int barrier, int threads) {
  gpu::join(gpu::current->block->barriers[barrier], threads, false);
}
PRNN_IN_CALLER void ptx(gpu::arrive_at_cluster) {
  while (gpu::current->stores > 0) gpu::yield();
  gpu::Barrier& barrier = gpu::cluster_barrier();
  gpu::current->cluster_phase = barrier.phase;
  gpu::join(barrier, gpu::grid.cluster * gpu::grid.threads, false);
}
PRNN_IN_CALLER void ptx(gpu::wait_for_cluster) {
  gpu::Barrier& barrier = gpu::cluster_barrier();
  const auto phase = gpu::current->cluster_phase;
  if (barrier.phase == phase) gpu::yield_until(barrier.phase, phase + 1);
  order::acquire(barrier.order);
}
PRNN_IN_CALLER void ptx(gpu::sync_cluster) {
  ptx(gpu::arrive_at_cluster());
  ptx(gpu::wait_for_cluster());
}
PRNN_IN_CALLER void ptx(gpu::cluster_rank, uint32_t& rank) { rank = gpu::current->block->index % gpu::grid.cluster; }
PRNN_IN_CALLER void ptx(gpu::map_address, uint32_t& mapped, uint32_t address, uint32_t rank) {
  mapped = gpu::in_rank(address, rank);
}

PRNN_IN_CALLER void ptx(gpu::init_barrier, uint32_t address, int arrivals = 1) {
  gpu::mbarrier(address) = {arrivals, arrivals, 0, 0};
}
PRNN_IN_CALLER void ptx(gpu::arrive, uint32_t address) {
  gpu::may_yield();
  gpu::arrive_at(gpu::mbarrier(address));
}
PRNN_IN_CALLER void ptx(gpu::expect_bytes, uint32_t address, uint32_t bytes) {
  gpu::may_yield();
  gpu::mbarrier(address).bytes += bytes;
  gpu::arrive_at(gpu::mbarrier(address));
}
PRNN_IN_CALLER void ptx(gpu::test_barrier, uint32_t& is_done, uint32_t address, uint32_t parity) {
  gpu::Mbarrier& barrier = gpu::mbarrier(address);
  if ((barrier.phase & 1) == parity) gpu::yield_until(barrier.phase, barrier.phase + 1, 10);
  is_done = (barrier.phase & 1) != parity;
  if (is_done) order::acquire(barrier.order);
}
PRNN_IN_CALLER void ptx(gpu::wait_at_barrier, uint32_t address, uint32_t parity) {
  uint32_t is_done = 0;
  while (!is_done) ptx(gpu::test_barrier(), is_done, address, parity);
}
PRNN_IN_CALLER void ptx(gpu::test_barrier_now, uint32_t& is_done, uint32_t address, uint32_t parity) {
  gpu::Mbarrier& barrier = gpu::mbarrier(address);
  if (gpu::one_in(2)) gpu::yield();
  is_done = (barrier.phase & 1) != parity;
  if (is_done) order::acquire(barrier.order);
}
PRNN_IN_CALLER void ptx(gpu::bulk, uint32_t to, const void* from, int bytes, uint32_t barrier, uint16_t ranks) {
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0 || bytes % 16 != 0) gpu::fail("a bulk copy is not aligned");
  for (int rank = 0; rank < gpu::grid.cluster; ++rank) {
    if ((ranks >> rank & 1) == 0) continue;
    gpu::at(gpu::in_rank(to, rank), 16);
    gpu::send_bytes(gpu::in_rank(to, rank), gpu::in_rank(barrier, rank), bytes, [=] { return from; });
  }
}
PRNN_IN_CALLER void ptx(gpu::bulk_here, uint32_t to, const void* from, int bytes, uint32_t barrier) {
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0 || bytes % 16 != 0) gpu::fail("a bulk copy is not aligned");
  gpu::at(to, 16);
  gpu::send_bytes(to, barrier, bytes, [=] { return from; });
}
// Now or later, before the thread waits for the group's reads.
PRNN_IN_CALLER void ptx(gpu::bulk_out, const void* to, uint32_t from, int bytes) {
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || bytes % 16 != 0) gpu::fail("a bulk copy is not aligned");
  const char* const place = gpu::at(from, 16);
  gpu::issue(gpu::current->copies, gpu::current->copy_groups,
             [=] { order::copy(const_cast<void*>(to), place, bytes); });
}
template <class Word>
PRNN_IN_CALLER void ptx(gpu::send, uint32_t to, Word word, uint32_t barrier) {
  gpu::send_words(to, barrier, word);
}
template <class Word>
PRNN_IN_CALLER void ptx(gpu::send, uint32_t to, Word x, Word y, uint32_t barrier) {
  gpu::send_words(to, barrier, x, y);
}
template <class Word>
PRNN_IN_CALLER void ptx(gpu::send, uint32_t to, Word x, Word y, Word z, Word w, uint32_t barrier) {
  gpu::send_words(to, barrier, x, y, z, w);
}

// ---- products and arithmetic ----

// The products of a warpgroup are one: who waits for them waits for its warps.
PRNN_IN_CALLER void ptx(gpu::commit_products) { ++gpu::current->product_groups; }
PRNN_IN_CALLER void ptx(gpu::wait_for_products, int left) {
  const long group = gpu::current->product_groups - left;
  gpu::finish(gpu::current->products, group);
  gpu::meet(gpu::current->block->barriers[16 + gpu::current->number / 128], 128, true);
  order::end_products(group);
}
template <class... Operands>
PRNN_IN_CALLER void ptx(gpu::mma_half, Operands&&... operands) {
  gpu::multiply_tile<__half>(operands...);
}
template <class... Operands>
PRNN_IN_CALLER void ptx(gpu::mma_bfloat16, Operands&&... operands) {
  gpu::multiply_tile<__nv_bfloat16>(operands...);
}
template <class... Operands>
PRNN_IN_CALLER void ptx(gpu::mma_tf32, Operands&&... operands) {
  gpu::multiply_tile<gpu::Tf32>(operands...);
}
PRNN_IN_CALLER void ptx(gpu::low_part, uint32_t& rest, uint32_t word, float factor) {
  rest = __float_as_uint(fmaf(__uint_as_float(word), factor, -__uint_as_float(word & 0xFFFFE000)));
}
PRNN_IN_CALLER void ptx(gpu::round_to_tf32, uint32_t& rounded, float value) {
  const uint32_t bits = __float_as_uint(value);
  const bool is_finite = (bits & 0x7F800000) != 0x7F800000;
  rounded = is_finite ? (bits + 0x1000) & 0xFFFFE000 : (bits & 0x7FFFFF) != 0 ? 0x7FFFFFFF : bits;
}
PRNN_IN_CALLER void ptx(gpu::exp2, float& power, float x) { power = exp2f(x); }
PRNN_IN_CALLER void ptx(gpu::log2, float& result, float x) { result = log2f(x); }
PRNN_IN_CALLER void ptx(gpu::tangent, float& result, float x) { result = tanhf(x); }
PRNN_IN_CALLER void ptx(gpu::reciprocal, float& result, float x) { result = 1 / x; }
PRNN_IN_CALLER void ptx(gpu::copy_register, float& to, float from) { to = from; }
PRNN_IN_CALLER void ptx(gpu::read_timer, uint64_t& time) { time = 0; }  // no wait is too long: launch() counts turns
PRNN_IN_CALLER void ptx(gpu::read_clock, uint32_t& cycles) { cycles = gpu::clock_cycles += 200; }
PRNN_IN_CALLER void ptx(gpu::lane_id, int& lane) { lane = gpu::lane(); }
