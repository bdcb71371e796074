#include "order.h"

#include <set>
#include <tuple>
#include <unordered_map>

#include "gpu.h"

namespace order {
namespace {

// Actors: the warps; the products of each warpgroup, by its first warp; the copies that each mbarrier counts. A warp's
// clock counts its __syncwarp() and barriers, that of products their groups, that of copies the phases.
constexpr int kMbarriers = 16;    // of a block at most, that count copies
constexpr size_t kPlace = 2;      // bytes that have a history of their own
constexpr uintptr_t kLine = 512;  // bytes that a warp stores at once, of words in Kind::kExchange
constexpr Clock kInFlight = INT16_MAX;
constexpr uint8_t kManyLanes = 32;
constexpr int kReads = 2;

// None: clock 0.
struct Access {
  uint32_t instruction;
  int16_t actor;
  Clock clock;
  uint8_t lane;
};
struct Place {
  Access write, reads[kReads];
};
struct Memory {
  const char* begin = nullptr;
  size_t bytes = 0;
  Kind kind = Kind::kWords;
  Place* places = nullptr;

  bool has(const void* address) const { return static_cast<size_t>(static_cast<const char*>(address) - begin) < bytes; }
  size_t places_bytes() const { return bytes / kPlace * sizeof(Place); }
};
struct Copy {
  const void* to;
  size_t bytes;
  const void* from;
  size_t from_bytes;
  long group;
  const void* instruction;
};
struct Seen {
  uintptr_t line = 0;
  long stores = 0;
};
struct Self {
  Clock* known;  // of the actors; of the own warp: what its other lanes did
  int warp, lane;
  Clock clock = 1;
  std::vector<Copy> copies;
  Seen seen[8];  // of lines that it polls
};
struct Line {
  Clocks known;  // of those who stored to it
  long stores = 0;
};
using Pair = std::tuple<bool, uint32_t, bool, uint32_t>;

Memory shared;
std::vector<Memory> global;
const char *global_begin = nullptr, *global_end = nullptr;  // all of it is between them
std::vector<Self> threads;
Clocks known;
std::unordered_map<const void*, Clocks> counters;
std::unordered_map<uintptr_t, Line> lines;
std::unordered_map<const char*, Clocks> words;  // what who stored each knew
std::set<Pair> pairs;
int warps, actors, actors_used;

Self& self() { return threads[gpu::current->block->index * gpu::grid.threads + gpu::current->number]; }
int products_of(const Self& own) { return warps + own.warp - gpu::current->number / 32 % 4; }

void join(Clock* to, const Clocks& from) {
  for (size_t i = 0; i < from.size(); ++i) to[i] = std::max(to[i], from[i]);
}
void join(Clocks& to, const Clock* from) {
  to.resize(actors);
  for (int i = 0; i < actors; ++i) to[i] = std::max(to[i], from[i]);
}
Clock clock_of(long number) {
  if (number >= kInFlight) gpu::fail("too many steps to follow their order");
  return static_cast<Clock>(number);
}

bool is_before(const Access& access, const Self& own) { return access.clock <= own.known[access.actor]; }
// The lane's own, in its order.
bool is_own(const Access& before, const Access& now, const Self& own) {
  return before.actor == own.warp && now.actor == own.warp && before.lane == own.lane && before.clock < kInFlight;
}
void check(const Access& before, bool writes_before, const Access& now, bool writes, const Self& own) {
  if (is_before(before, own) || is_own(before, now, own)) return;
  pairs.insert({writes_before, before.instruction, writes, now.instruction});
}
void add_read(Place& place, const Access& now, const Self& own) {
  for (Access& read : place.reads) {
    if (read.actor != now.actor && !is_before(read, own)) continue;
    const bool is_alone = is_before(read, own) || is_own(read, now, own);
    read = now;
    if (!is_alone) read.lane = kManyLanes;
    return;
  }
  std::swap(place.reads[0], place.reads[1]);
  place.reads[0] = now;
}

// NULL: of memory that is not followed.
const Memory* find(const void* address) {
  if (shared.has(address)) return &shared;
  if (address < global_begin || address >= global_end) return nullptr;
  for (const Memory& memory : global)
    if (memory.has(address)) return &memory;
  return nullptr;
}
template <class Do>
void for_places(const void* address, size_t bytes, const Do& act) {
  const Memory* const memory = find(address);
  if (memory == nullptr) return;
  const size_t first = static_cast<const char*>(address) - memory->begin;
  for (size_t i = first / kPlace; i < (first + bytes + kPlace - 1) / kPlace; ++i) act(memory->places[i]);
}
Access access_of(const Self& own, int actor, Clock clock, const void* instruction) {
  const auto place_in_program = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(instruction));
  return {place_in_program, static_cast<int16_t>(actor), clock, static_cast<uint8_t>(own.lane)};
}
void access(const void* address, size_t bytes, bool writes, const Self& own, int actor, Clock clock,
            const void* instruction) {
  const Access now = access_of(own, actor, clock, instruction);
  for_places(address, bytes, [&](Place& place) {
    check(place.write, true, now, writes, own);
    if (!writes) return add_read(place, now, own);
    for (Access& read : place.reads) {
      check(read, false, now, true, own);
      read = {};
    }
    place.write = now;
  });
}
inline void access(const void* address, size_t bytes, bool writes, const void* instruction) {
  if (find(address) == nullptr) return;
  const Self& own = self();
  access(address, bytes, writes, own, own.warp, own.clock, instruction);
}

void store_line(const void* to) {
  Line& line = lines[reinterpret_cast<uintptr_t>(to) / kLine];
  ++line.stores;
  join(line.known, self().known);
}
void load_line(const void* from) {
  Self& own = self();
  const uintptr_t number = reinterpret_cast<uintptr_t>(from) / kLine;
  const Line& line = lines[number];
  Seen& seen = own.seen[number % 8];
  if (seen.line == number && seen.stores == line.stores) return;
  seen = {number, line.stores};
  join(own.known, line.known);
}

template <class Do>
void for_words(const void* address, size_t bytes, const Do& act) {
  const auto* const first = static_cast<const char*>(address);
  for (const char* word = first; word < first + bytes; word += sizeof kEmpty) {
    uint32_t value;
    std::memcpy(&value, word, sizeof value);
    act(word, value != kEmpty);
  }
}
void store_each(const void* to, size_t bytes) {
  const Self& own = self();
  for_words(to, bytes, [&](const char* word, bool is_there) {
    if (is_there) words[word].assign(own.known, own.known + actors);
  });
}
// A word that is there was stored before: who comes after this thread comes after the store. One that is not there will
// be read again, and must have been made empty before: else it could have been an old one.
void load_each(const void* from, size_t bytes, const void* instruction) {
  Self& own = self();
  for_words(from, bytes, [&](const char* word, bool is_there) {
    if (is_there && words_order) join(own.known, words[word]);
    const Access now = access_of(own, own.warp, own.clock, instruction);
    for_places(word, sizeof kEmpty, [&](Place& place) {
      Access& write = place.write;
      if (!is_there) return check(write, true, now, false, own);
      add_read(place, now, own);
      if (!is_before(write, own)) write = {write.instruction, now.actor, now.clock, now.lane};
    });
  });
}

}  // namespace

void follow(const void* memory, size_t bytes, Kind kind) {
  const auto* const begin = static_cast<const char*>(memory);
  global_begin = global.empty() ? begin : std::min(global_begin, begin);
  global_end = std::max(global_end, begin + bytes);
  global.push_back({begin, bytes, kind});
}

void start(int blocks, int block_threads, char* shared_memory, size_t bytes_of_block) {
  shared = {shared_memory, blocks * bytes_of_block};
  const auto reserve = [](Memory& memory) {
    if (memory.bytes > 0) memory.places = reinterpret_cast<Place*>(gpu::reserve(memory.places_bytes()));
  };
  reserve(shared);
  for (Memory& memory : global) reserve(memory);
  const int count = blocks * block_threads;
  warps = count / 32;
  actors_used = 2 * warps;
  actors = actors_used + blocks * kMbarriers;
  known.assign(size_t(count) * actors, 0);
  threads.resize(count);
  for (int i = 0; i < count; ++i) threads[i] = {&known[size_t(i) * actors], i / 32, i % 32};
  counters.clear();
  lines.clear();
  words.clear();
  pairs.clear();
}

void finish() {
  for (const auto& [writes_before, before, writes, now] : pairs)
    std::printf("unordered %s %x %s %x\n", writes_before ? "write" : "read", before, writes ? "write" : "read", now);
  global.push_back(shared);
  for (const Memory& memory : global)
    if (memory.bytes > 0) gpu::release(memory.places, memory.places_bytes());
  global.clear();
  shared = {};
  global_begin = global_end = nullptr;
}

void arrive(Phase& phase) {
  Self& own = self();
  join(phase.arriving, own.known);
  phase.arriving[own.warp] = own.clock;
  own.clock = clock_of(own.clock + 1);
}
void arrive_alone(Phase& phase) { join(phase.arriving, self().known); }
void end(Phase& phase) {
  phase.last.swap(phase.arriving);
  phase.arriving.clear();
}
void acquire(const Phase& phase) { join(self().known, phase.last); }

void release_counter(const void* counter) { join(counters[counter], self().known); }
void acquire_counter(const void* counter) { join(self().known, counters[counter]); }
void store_words(const void* to, size_t bytes) {
  const Memory* const memory = find(to);
  if (memory == nullptr) return;
  if (memory->kind == Kind::kExchange) return store_line(to);
  access(to, bytes, true, __builtin_return_address(0));
  if (memory->kind == Kind::kWords) store_each(to, bytes);
}
void load_words(const void* from, size_t bytes) {
  const Memory* const memory = find(from);
  if (memory == nullptr) return;
  if (memory->kind == Kind::kExchange) return load_line(from);
  if (memory->kind == Kind::kWords) return load_each(from, bytes, __builtin_return_address(0));
  access(from, bytes, false, __builtin_return_address(0));
}

void begin_copy(const void* to, size_t bytes, const void* from, size_t from_bytes, long group) {
  Self& own = self();
  const void* const instruction = __builtin_return_address(0);
  access(from, from_bytes, false, instruction);
  access(to, bytes, true, own, own.warp, kInFlight, instruction);
  own.copies.push_back({to, bytes, from, from_bytes, group, instruction});
}
// A copy that was waited for is an access of its thread.
void end_copies(long group) {
  Self& own = self();
  size_t done = 0;
  for (; done < own.copies.size() && own.copies[done].group < group; ++done) {
    const Copy& copy = own.copies[done];
    access(copy.from, copy.from_bytes, false, copy.instruction);  // until now
    for_places(copy.to, copy.bytes, [&](Place& place) {
      Access& write = place.write;
      if (write.clock == kInFlight && write.actor == own.warp && write.lane == own.lane) write.clock = own.clock;
    });
  }
  own.copies.erase(own.copies.begin(), own.copies.begin() + done);
}

Clocks begin_counted(Phase& barrier, long phase, const void* to, const void* from, size_t bytes) {
  if (barrier.actor < 0) barrier.actor = actors_used++;
  if (barrier.actor >= actors) gpu::fail("too many mbarriers to follow their order");
  const Self& own = self();
  access(to, bytes, true, own, barrier.actor, clock_of(phase + 1), __builtin_return_address(0));
  access(from, bytes, false, own, barrier.actor, clock_of(phase + 1), __builtin_return_address(0));
  return Clocks(own.known, own.known + actors);
}
void end_counted(Phase& barrier, const Clocks& issued) { join(barrier.arriving, issued.data()); }
void end_counted_phase(Phase& barrier, long phase) {
  if (barrier.actor >= 0) barrier.arriving[barrier.actor] = clock_of(phase + 1);
  end(barrier);
}

void read_by_product(const void* from, size_t bytes, long group) {
  const Self& own = self();
  access(from, bytes, false, own, products_of(own), clock_of(group + 1), __builtin_return_address(0));
}
void end_products(long group) {
  const Self& own = self();
  Clock& ended = own.known[products_of(own)];
  ended = std::max(ended, clock_of(group));
}

void copy(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
void fill(void* to, int byte, size_t bytes) { std::memset(to, byte, bytes); }

}  // namespace order

// ---- what -fsanitize=thread calls ----

#define PRNN_HOOKS(BYTES)                                                                                        \
  extern "C" void __tsan_read##BYTES(void* at) { order::access(at, BYTES, false, __builtin_return_address(0)); } \
  extern "C" void __tsan_write##BYTES(void* at) { order::access(at, BYTES, true, __builtin_return_address(0)); } \
  extern "C" void __tsan_unaligned_read##BYTES(void* at) {                                                       \
    order::access(at, BYTES, false, __builtin_return_address(0));                                                \
  }                                                                                                              \
  extern "C" void __tsan_unaligned_write##BYTES(void* at) {                                                      \
    order::access(at, BYTES, true, __builtin_return_address(0));                                                 \
  }
PRNN_HOOKS(1)
PRNN_HOOKS(2)
PRNN_HOOKS(4)
PRNN_HOOKS(8)
PRNN_HOOKS(16)
extern "C" void __tsan_read_range(void* at, size_t bytes) {
  order::access(at, bytes, false, __builtin_return_address(0));
}
extern "C" void __tsan_write_range(void* at, size_t bytes) {
  order::access(at, bytes, true, __builtin_return_address(0));
}
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_vptr_read(void**) {}
extern "C" void __tsan_vptr_update(void**, void*) {}
