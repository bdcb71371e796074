// Binds the packing of sequences (persistent_rnn.h), and Sequences.
#include "sequences.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <climits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "errors.h"
#include "handle.h"
#include "persistent_rnn.h"

namespace py = pybind11;

namespace prnn_python {
namespace {

const int* order_of(const BatchSizes& batch_sizes, const std::optional<std::vector<int>>& order) {
  if (!order) return nullptr;
  if (batch_sizes.empty() || order->size() != static_cast<size_t>(batch_sizes[0])) {
    throw py::value_error("order has " + std::to_string(order->size()) + " entries; it must have batch_sizes[0]");
  }
  return order->data();
}

void pack_sequences(const Handle& handle, const BatchSizes& batch_sizes, const std::optional<std::vector<int>>& order,
                    size_t row_bytes, uintptr_t padded, size_t step_stride, size_t sequence_stride, uintptr_t packed) {
  check(prnnPackSequences(handle.get(), static_cast<int>(batch_sizes.size()), batch_sizes.data(),
                          order_of(batch_sizes, order), row_bytes, pointer(padded), step_stride, sequence_stride,
                          pointer(packed)),
        handle.get());
}

void unpack_sequences(const Handle& handle, const BatchSizes& batch_sizes, const std::optional<std::vector<int>>& order,
                      size_t row_bytes, uintptr_t packed, uintptr_t padded, int padded_length, size_t step_stride,
                      size_t sequence_stride) {
  check(prnnUnpackSequences(handle.get(), static_cast<int>(batch_sizes.size()), batch_sizes.data(),
                            order_of(batch_sizes, order), row_bytes, pointer(packed), pointer(padded), padded_length,
                            step_stride, sequence_stride),
        handle.get());
}

// Python's integers from 1 to a largest one; none where an object is no list or tuple of such.
template <class Integer>
std::optional<std::vector<Integer>> integers_of(const py::object& list, long long largest) {
  if (!PyList_CheckExact(list.ptr()) && !PyTuple_CheckExact(list.ptr())) return std::nullopt;
  std::vector<Integer> found(static_cast<size_t>(PySequence_Fast_GET_SIZE(list.ptr())));
  PyObject* const* const items = PySequence_Fast_ITEMS(list.ptr());
  for (size_t i = 0; i < found.size(); ++i) {
    int overflow = 0;
    const long long value = PyLong_CheckExact(items[i]) ? PyLong_AsLongLongAndOverflow(items[i], &overflow) : 0;
    if (overflow != 0 || value < 1 || value > largest) return std::nullopt;
    found[i] = static_cast<Integer>(value);
  }
  return found;
}

std::optional<Sequences> sequences_of_lengths(const py::object& lengths, int steps, size_t batch) {
  const auto found = integers_of<int64_t>(lengths, steps);
  if (!found || found->size() != batch) return std::nullopt;
  return Sequences(*found, steps);
}

std::optional<Sequences> sequences_of_sizes(const py::object& sizes, int64_t rows) {
  auto found = integers_of<int>(sizes, INT_MAX);
  if (!found || found->empty() || !std::is_sorted(found->rbegin(), found->rend())) return std::nullopt;
  Sequences sequences(std::move(*found));
  if (sequences.rows() != rows) return std::nullopt;
  return sequences;
}

}  // namespace

void bind_sequences(py::module_& module) {
  using namespace py::literals;
  module.def("pack_sequences", &pack_sequences, "handle"_a, "batch_sizes"_a, "order"_a, "row_bytes"_a, "padded"_a,
             "step_stride"_a, "sequence_stride"_a, "packed"_a, "Strides in bytes; order None: 0, 1, ...");
  module.def("unpack_sequences", &unpack_sequences, "handle"_a, "batch_sizes"_a, "order"_a, "row_bytes"_a, "packed"_a,
             "padded"_a, "padded_length"_a, "step_stride"_a, "sequence_stride"_a, "The way back, padded with zeros.");

  py::class_<Sequences>(module, "Sequences",
                        "The sequences of a call: so many in each timestep, and how padded data gets there.")
      .def(py::init<BatchSizes>(), "sizes"_a, "Packed, or padded and all of one length.")
      .def(py::init<std::vector<int64_t>, int>(), "lengths"_a, "steps"_a, "Padded data of so many timesteps.")
      .def_static(
          "even", [](int steps, int batch) { return Sequences(BatchSizes(static_cast<size_t>(steps), batch)); },
          "steps"_a, "batch"_a, "Sequences that all have `steps` timesteps.")
      .def_static("of_lengths", &sequences_of_lengths, "lengths"_a, "steps"_a, "batch"_a,
                  "Padded data of so many timesteps; None unless lengths is a list or tuple of `batch` integers from 1 "
                  "to steps.")
      .def_static("of_sizes", &sequences_of_sizes, "sizes"_a, "rows"_a,
                  "Packed data of so many rows; None unless sizes is a list or tuple of integers that make as many.")
      .def("__len__", &Sequences::steps)
      .def("__getitem__",
           [](const Sequences& sequences, int index) {
             const int steps = sequences.steps(), place = index < 0 ? index + steps : index;
             if (place < 0 || place >= steps) throw py::index_error();
             return sequences.sizes[static_cast<size_t>(place)];
           })
      .def_readonly("sizes", &Sequences::sizes)
      .def_property_readonly("rows", &Sequences::rows, "Timesteps of all sequences.")
      .def_property_readonly(
          "order",
          [](const Sequences& sequences) {
            return sequences.order.empty() ? std::nullopt : std::optional<std::vector<int>>(sequences.order);
          },
          "Sequences of padded data from long to short; None: as they lie.")
      .def_property_readonly("batch", &Sequences::batch)
      .def_property_readonly(
          "shape",
          [](const Sequences& sequences) {
            return py::make_tuple(sequences.steps(), sequences.batch(), sequences.last(), sequences.is_padded());
          },
          "Timesteps, sequences, those of the last timestep, and is_padded.")
      .def_property_readonly("is_padded", &Sequences::is_padded, "Whether a sequence is shorter than the data.")
      .def_property_readonly("lengths", &Sequences::lengths);
  py::implicitly_convertible<py::list, Sequences>();
}

}  // namespace prnn_python
