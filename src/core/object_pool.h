// Storage for the objects behind the C API's opaque pointers. It is recycled and never given back to the system, so
// that a destroyed object can still be looked at: its tag is 0 then, and a call with it is an error instead of a crash.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <deque>
#include <mutex>
#include <type_traits>

#include "core/status.h"

namespace prnn {

template <class Object>
class ObjectPool {
 public:
  // The pool of this type; never destroyed, so that clients may clean up in their own static destructors.
  static ObjectPool& instance() { return instance_; }

  Object* create() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (resting_ <= kResting) return &slots_.emplace_back().object;
    Slot* const slot = first_;
    first_ = slot->next;
    --resting_;
    slot->object.tag = Object::kAlive;
    return &slot->object;
  }

  // Takes no memory, so that it cannot fail.
  void destroy(Object* object) {
    std::lock_guard<std::mutex> lock(mutex_);
    *object = Object();
    object->tag = 0;
    Slot* const slot = reinterpret_cast<Slot*>(object);
    slot->next = nullptr;
    (resting_++ == 0 ? first_ : last_->next) = slot;
    last_ = slot;
  }

 private:
  // A process that is forked while another thread makes an object finds the pool at rest.
  ObjectPool() {
    pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                   [] { instance().mutex_.unlock(); });
  }

  // Destroyed objects kept back, so that a stale pointer is not soon valid again.
  static constexpr size_t kResting = 64;

  struct Slot {
    Object object;
    Slot* next = nullptr;  // of the resting ones, the one that was destroyed after this
  };
  static_assert(std::is_standard_layout_v<Slot>, "a slot lies where its object does");

  // Made when the library is loaded: a pool that the first call made could be half made in a forked process.
  static ObjectPool& instance_;

  std::mutex mutex_;
  std::deque<Slot> slots_;
  Slot *first_ = nullptr, *last_ = nullptr;  // the resting ones
  size_t resting_ = 0;
};

template <class Object>
ObjectPool<Object>& ObjectPool<Object>::instance_ = *new ObjectPool;

// Whether the pointer is an object of this type that was created and not destroyed. Garbage is told by its tag; a
// pointer into memory that does not exist cannot be told.
template <class Object>
bool is_alive(const Object* object) {
  return object != nullptr && reinterpret_cast<uintptr_t>(object) % alignof(Object) == 0 &&
         object->tag == Object::kAlive;
}

// Throws BAD_PARAM unless is_alive().
template <class Object>
void require_alive(const Object* object, const char* name) {
  require_not_null(object, name);
  if (!is_alive(object)) {
    fail(PRNN_STATUS_BAD_PARAM, "%s at %p is no %s descriptor, or was destroyed", name,
         static_cast<const void*>(object), Object::kKind);
  }
}

// The bodies of prnnCreate...Descriptor and prnnDestroy...Descriptor.
template <class Object>
prnnStatus_t create_object(Object** object, const char* name) {
  return guarded(nullptr, [&] {
    require_not_null(object, name);
    *object = ObjectPool<Object>::instance().create();
  });
}

template <class Object>
prnnStatus_t destroy_object(Object* object, const char* name) {
  return guarded(nullptr, [&] {
    if (object == nullptr) return;
    require_alive(object, name);
    ObjectPool<Object>::instance().destroy(object);
  });
}

}  // namespace prnn
