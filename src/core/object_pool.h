// Storage for the objects behind the C API's opaque pointers. It is recycled and never given back to the system, so
// that a destroyed object can still be looked at: its tag is 0 then, and a call with it is an error instead of a crash.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>

#include "core/status.h"

namespace prnn {

template <class Object>
class ObjectPool {
 public:
  // The pool of this type; never destroyed, so that clients may clean up in their own static destructors.
  static ObjectPool& instance() {
    static ObjectPool& pool = *new ObjectPool;
    return pool;
  }

  Object* create() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (free_.size() <= kResting) return &objects_.emplace_back();
    Object* object = free_.front();
    free_.pop_front();
    object->tag = Object::kAlive;
    return object;
  }

  void destroy(Object* object) {
    std::lock_guard<std::mutex> lock(mutex_);
    *object = Object();
    object->tag = 0;
    free_.push_back(object);
  }

 private:
  static constexpr size_t kResting =
      64;  // destroyed objects kept back, so that a stale pointer is not soon valid again

  std::mutex mutex_;
  std::deque<Object> objects_;
  std::deque<Object*> free_;
};

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
