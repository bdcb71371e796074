"""Every function of the C API with each of its allocations failing in turn: ALLOC_FAILED, and no output written.

A program for test_allocations.py, which preloads tests/c/failing_new.cc. Prints a line for each call: its name, and how
many allocations it makes."""

import ctypes
import sys
from collections.abc import Callable, Iterator
from typing import Any

import capi
import decode_case
import layer_norm_lstm_c_case
import loss_case
import torch
from reference import rnn as reference
from rnn_case import RnnCase, dropout_descriptor
from test_prepared_calls import RUNS, Prepared

fail_allocation = ctypes.CDLL(None).fail_allocation
fail_allocation.argtypes = [ctypes.c_long, ctypes.c_int]
MOST = 2000  # allocations of a call
called: set[str] = set()


def each_allocation_fails(name: str, call: Callable[[], int], outputs: Callable[[], list[bytes]]) -> None:
    """call() until it succeeds, one allocation later each time; before that, outputs() stay as they are."""
    called.add(name.split()[0])
    for alone in (1, 0):
        before = outputs()
        for count in range(MOST):
            fail_allocation(count, alone)
            status = call()
            fail_allocation(-1, 1)
            if status == capi.SUCCESS:
                break
            assert status == capi.ALLOC_FAILED, f"{name}: status {status} where allocation {count} failed"
            assert outputs() == before, f"{name}: outputs were written before allocation {count} failed"
        else:
            raise AssertionError(f"{name} makes more than {MOST} allocations")
    print(name, count)


def bytes_of(*values: Any) -> list[bytes]:
    return [
        ctypes.string_at(value.data_ptr(), value.nbytes) if isinstance(value, torch.Tensor) else bytes(value)
        for value in values
        if value is not None
    ]


def layers() -> Iterator[tuple[str, RnnCase]]:
    """Layers of so much work that two threads share it, and with everything that takes memory."""
    for mode in (reference.RNN_TANH, reference.LSTM, reference.GRU):
        projection = 24 if mode == reference.LSTM else 0
        stack = reference.Stack(mode, 40, 48, 3, directions=2, projection=projection)
        for dtype in (torch.float32, torch.float64):
            handle = capi.cpu_handle()
            states = (ctypes.c_uint64 * 2)()
            dropout = dropout_descriptor(handle, 0.5, states, 3)
            case = RnnCase(stack, [8] * 5 + [3] * 4, dtype, dropout, handle)
            case.states = states
            yield f"{mode} {dtype}", case


def check_layers() -> None:
    for kind, case in layers():

        def outputs(case: RnnCase = case) -> list[bytes]:
            names = ("y", "hy", "cy", "dx", "dhx", "dcx", "dw")
            return bytes_of(*(case.data[name] for name in names), case.reserve, case.states)

        for name in ("RNNForwardInference", "RNNForwardTraining", "RNNBackwardData", "RNNBackwardWeights"):
            each_allocation_fails(f"{name} {kind}", lambda name=name, case=case: case.call(name), outputs)


def check_prepared_calls() -> None:
    for kind, case in layers():
        sizes, made, rows = capi.ints(case.batch_sizes), ctypes.c_void_p(), len(case.batch_sizes)
        prepare = {"handle": case.handle.pointer, "rnnDesc": case.rnn.pointer, "mode": 1, "inputSize": case.stack.input}
        prepare |= {"seqLength": rows, "batchSizes": sizes, "call": ctypes.byref(made)}
        each_allocation_fails(f"PrepareRNN {kind}", lambda prepare=prepare: capi.call("PrepareRNN", **prepare), list)
        prepared = Prepared(case)

        def outputs(case: RnnCase = case, prepared: Prepared = prepared) -> list[bytes]:
            names = ("y", "hy", "cy", "dx", "dhx", "dcx", "dw")
            return bytes_of(*(case.data[name] for name in names), prepared.reserve, case.states, prepared.info)

        info = {"call": prepared.call, "info": ctypes.byref(prepared.info)}
        each_allocation_fails(f"GetRNNCallInfo {kind}", lambda info=info: capi.call("GetRNNCallInfo", **info), outputs)
        for name in RUNS:
            each_allocation_fails(f"{name} {kind}", lambda name=name, prepared=prepared: prepared.run(name), outputs)
        fail_allocation(0, 0)
        status = capi.call("DestroyRNNCall", call=made)
        fail_allocation(-1, 1)
        assert status == capi.SUCCESS
        called.add("DestroyRNNCall")


def check_around_layers() -> None:
    _, case = next(layers())
    handle, rnn = case.handle.pointer, case.rnn.pointer
    x, w = case.x_descs[0].pointer, case.w_desc.pointer
    found, size, block = ctypes.c_void_p(1), ctypes.c_size_t(1), capi.filter_([1])
    info, text, states = (ctypes.c_char * 4096)(), (ctypes.c_char * 256)(), (ctypes.c_uint64 * 2)()
    type_, rank = ctypes.c_int(1), ctypes.c_int(1)
    dims, filter_dims = (ctypes.c_int * 8)(), (ctypes.c_int * 8)()
    plan = capi.Plan(1, 8, 1, 1, 0)
    gpu = ctypes.create_string_buffer(capi.call("GetGPUName", index=0))
    tensor, dropout = capi.tensor([3]), capi.descriptor("Dropout")
    values: dict[str, Any] = {
        "handle": handle,
        "rnnDesc": rnn,
        "wDesc": w,
        "w": 4096,
        "layer": 0,
        "linLayerID": 0,
        "linLayerMatDesc": block.pointer,
        "linLayerMat": ctypes.byref(found),
        "linLayerBiasDesc": block.pointer,
        "linLayerBias": ctypes.byref(found),
        "sizeInBytes": ctypes.byref(size),
        "dataType": case.data_type,
        "info": info,
        "gpu": gpu,
        "text": text,
        "size": 256,
        "tensorDesc": tensor.pointer,
        "filterDesc": block.pointer,
        "dropoutDesc": dropout.pointer,
        "nbDims": 2,
        "dimA": capi.ints([2, 3]),
        "strideA": capi.ints([3, 1]),
        "filterDimA": capi.ints([2, 3]),
        "format": 0,
        "dropout": 0.5,
        "states": states,
        "stateSizeInBytes": 16,
        "seed": 1,
        "hiddenSize": 8,
        "numLayers": 1,
        "inputMode": 0,
        "direction": 0,
        "mode": 2,
        "backend": 2,
        "mType": 0,
        "wgradMode": 0,
        "frozenLayers": 0,
        "fwdMode": 1,
        "workSpaceSize": ctypes.byref(size),
        "reserveSpaceSize": ctypes.byref(size),
        "forward": ctypes.byref(plan),
        "extras": None,
        "masks": None,
        "backward": ctypes.byref(plan),
        "projSize": 0,
        "heads": 1,
        "kind": 2,
        "epsilon": 0.0,
        "stream": None,
        "nbDimsRequested": 8,
    }
    getters = {
        "GetTensorNdDescriptor": {"dimA": dims, "strideA": filter_dims},
        "GetFilterNdDescriptor": {"format": ctypes.byref(type_), "filterDimA": filter_dims},
    }
    reads = {"dataType": ctypes.byref(type_), "nbDims": ctypes.byref(rank)}
    outputs = (found, size, info, text, states, type_, rank, dims, filter_dims)
    for name in (
        "GetRNNWorkspaceSize",
        "GetRNNTrainingReserveSize",
        "GetRNNTempSpaceSizes",
        "GetRNNParamsSize",
        "GetRNNLinLayerMatrixParams",
        "GetRNNLinLayerBiasParams",
        "QueryRNN",
        "QueryRNNSequence",
        "QueryRNNForGPU",
        "SetTensorNdDescriptor",
        "GetTensorNdDescriptor",
        "SetFilterNdDescriptor",
        "GetFilterNdDescriptor",
        "DropoutGetStatesSize",
        "SetDropoutDescriptor",
        "RestoreDropoutDescriptor",
        "SetStream",
        "SetRNNBackend",
        "SetRNNMatrixMathType",
        "SetRNNPlan",
        "SetRNNWgradMode",
        "SetRNNFrozenLayers",
        "SetRNNExtras",
        "SetRNNMasks",
        "SetRNNNormalization",
        "SetRNNProjectionSize",
        "SetRNNHeads",
        "SetRNNDescriptor",
    ):
        several = name.endswith(("Size", "Sizes", "Sequence")) and name != "GetRNNParamsSize"
        given = values | {"xDesc": case.x_desc if several else x, "seqLength": len(case.batch_sizes)}
        if name in getters:
            given |= reads | getters[name]
        arguments = {key: given[key] for key in capi.FUNCTIONS[f"prnn{name}"].parameters}
        each_allocation_fails(
            name, lambda name=name, arguments=arguments: capi.call(name, **arguments), lambda: bytes_of(*outputs)
        )


def check_objects() -> None:
    kinds = {"": "CPU", "RNNDescriptor": "", "TensorDescriptor": "", "FilterDescriptor": "", "DropoutDescriptor": ""}
    for kind, suffix in kinds.items():
        create, destroy = f"Create{kind}{suffix}", f"Destroy{kind}"
        made: list[int] = []

        def make(create: str = create, made: list[int] = made) -> int:
            found = ctypes.c_void_p(1)
            (parameter,) = capi.FUNCTIONS[f"prnn{create}"].parameters
            status = capi.call(create, **{parameter: ctypes.byref(found)})
            if status == capi.SUCCESS:
                made.append(found.value)
            else:
                assert found.value == 1
            return status

        for _ in range(200):  # beyond the memory that the library keeps for them
            each_allocation_fails(create, make, list)
        (parameter,) = capi.FUNCTIONS[f"prnn{destroy}"].parameters
        fail_allocation(0, 0)
        statuses = [capi.call(destroy, **{parameter: pointer}) for pointer in made]
        fail_allocation(-1, 1)
        assert set(statuses) == {capi.SUCCESS}
        called.add(destroy)


def check_layer_norm() -> None:
    for dtype in (torch.float32, torch.float64):
        case = layer_norm_lstm_c_case.CCase(dtype)
        for name in ("Forward", "Backward", "InputForward", "InputBackward"):
            call = lambda name=name, case=case: case.call(name)  # noqa: E731
            function = layer_norm_lstm_c_case.RUNS.get(name, f"RNNGates{name}")
            each_allocation_fails(f"{function} {dtype}", call, lambda case=case: bytes_of(*case.outputs()))


def check_losses() -> None:
    cases = {
        "CTC": loss_case.ctc_case(),
        "CTC concatenated": loss_case.ctc_case(targetLayout=loss_case.CONCATENATED),
        "RNNT": loss_case.rnnt_case(),
        "RNNT packed": loss_case.rnnt_case(layout=loss_case.RNNT_PACKED),
        "RNNT pruned": loss_case.rnnt_case(layout=loss_case.RNNT_PRUNED, targetLayout=loss_case.CONCATENATED),
        "DurationRNNT": loss_case.duration_case(),
        "DurationRNNT multi-blank": loss_case.duration_case(type=loss_case.MULTI_BLANK),
        "MutualInformation": loss_case.mutual_information_case(),
    }
    sizes = ctypes.c_size_t()
    for kind, case in cases.items():
        family = kind.split()[0]

        def outputs(case: loss_case.LossCase = case) -> list[bytes]:
            names = [*case.outputs, "reserve"]
            return bytes_of(*(case.data[name] for name in names if name in case.data))

        names = [f"{family}Loss{part}" for part in ("", "Forward", "Backward")]
        names += [f"Get{family}Loss{what}Size" for what in ("Workspace", "Reserve")]
        if family in ("CTC", "RNNT"):
            names += [f"{family}Align", f"Get{family}AlignWorkspaceSize"]
        if family == "MutualInformation":
            names = ["MutualInformation", "GetMutualInformationWorkspaceSize", "RNNTPruneRanges"]
        for name in names:
            case.reset()
            each_allocation_fails(
                f"{name} {kind}",
                lambda name=name, case=case: case.call(name, sizeInBytes=ctypes.byref(sizes), pruneRange=2),
                lambda outputs=outputs: [*outputs(), *bytes_of(sizes)],
            )


def check_search() -> None:
    """A search of more utterances than one thread takes."""
    batch, frames, most = 20, 6, 3
    for predictor, layers, durations in (("lstm", 2, (0, 1, 2)), ("stateless", 1, ())):
        case = decode_case.DecodeCase(predictor, torch.float32, layers, durations)
        weights, options = case.c_weights(), decode_case.Options(batch, frames, most)
        size, given, state = ctypes.c_size_t(), case.frames(batch, frames), case.state(batch)
        by_options = {"options": ctypes.byref(options)}
        room = case.size("GetTransducerPreparedSize"), case.size("GetTransducerSearchWorkspaceSize", **by_options)
        prepared, workspace = (torch.zeros(count, dtype=torch.uint8) for count in room)
        symbols, counts = (torch.zeros(count, dtype=torch.int32) for count in (batch * frames * most, batch))
        pool = decode_case.State(**{name: tensor.data_ptr() for name, tensor in state.items()})
        calls: dict[str, dict[str, Any]] = {
            "GetTransducerPreparedSize": {"sizeInBytes": ctypes.byref(size)},
            "PrepareTransducer": {
                "weights": ctypes.byref(weights),
                "prepared": prepared.data_ptr(),
                "preparedSizeInBytes": room[0],
            },
            "GetTransducerSearchWorkspaceSize": {**by_options, "sizeInBytes": ctypes.byref(size)},
            "TransducerSearch": {
                **by_options,
                "prepared": prepared.data_ptr(),
                "inputs": ctypes.byref(decode_case.Inputs(given.data_ptr())),
                "state": ctypes.byref(pool),
                "outputs": ctypes.byref(decode_case.Outputs(symbols=symbols.data_ptr(), counts=counts.data_ptr())),
                "workspace": workspace.data_ptr(),
                "workspaceSizeInBytes": room[1],
            },
        }
        beam = 3
        by_beams = {"options": ctypes.byref(decode_case.BeamOptions(batch, frames, 1, beam, 0))}
        beam_workspace = torch.zeros(case.size("GetTransducerBeamSearchWorkspaceSize", **by_beams), dtype=torch.uint8)
        beam_symbols = torch.zeros(batch, beam, frames, dtype=torch.int32)
        beam_counts, scores = torch.zeros(batch, beam, dtype=torch.int32), torch.zeros(batch, beam, dtype=torch.float64)
        found = decode_case.BeamOutputs(
            symbols=beam_symbols.data_ptr(), counts=beam_counts.data_ptr(), scores=scores.data_ptr()
        )
        calls["GetTransducerBeamSearchWorkspaceSize"] = {**by_beams, "sizeInBytes": ctypes.byref(size)}
        calls["TransducerBeamSearch"] = {
            **by_beams,
            "prepared": prepared.data_ptr(),
            "inputs": ctypes.byref(decode_case.Inputs(given.data_ptr())),
            "state": None,
            "outputs": ctypes.byref(found),
            "workspace": beam_workspace.data_ptr(),
            "workspaceSizeInBytes": len(beam_workspace),
        }
        outputs = (size, prepared, symbols, counts, *state.values(), beam_symbols, beam_counts, scores)
        for name, arguments in calls.items():
            each_allocation_fails(
                f"{name} {predictor}",
                lambda name=name, case=case, arguments=arguments: case.call(name, **arguments),
                lambda outputs=outputs: bytes_of(*outputs),
            )


def check_stream_layers() -> None:
    """A call of more streams than one thread takes."""
    batch, frames, hidden = 20, 5, 24
    handle, size = capi.cpu_handle(), ctypes.c_size_t()
    layers = decode_case.Layers(capi.FLOAT, 2, 2, hidden, hidden, 0)
    common = {"handle": handle.pointer, "layers": ctypes.byref(layers)}
    counts = {"batch": batch, "maxFrames": frames}
    capi.check("GetStreamLayersPreparedSize", **common, sizeInBytes=ctypes.byref(size))
    prepared = torch.zeros(size.value, dtype=torch.uint8)
    capi.check("GetStreamLayersWorkspaceSize", **common, **counts, sizeInBytes=ctypes.byref(size))
    workspace = torch.zeros(size.value, dtype=torch.uint8)
    matrix, bias = torch.randn(4 * hidden, hidden), torch.randn(4 * hidden)
    own = decode_case.LayerWeights(*(tensor.data_ptr() for tensor in (matrix, matrix, bias, bias)))
    weights = (decode_case.LayerWeights * 2)(own, own)
    x, y = (torch.randn(batch, frames, hidden) for _ in range(2))
    h, c = (torch.zeros(batch, 2, hidden) for _ in range(2))
    data = {name: tensor.data_ptr() for name, tensor in (("x", x), ("h", h), ("c", c), ("y", y))}
    calls: dict[str, dict[str, Any]] = {
        "GetStreamLayersPreparedSize": {"sizeInBytes": ctypes.byref(size)},
        "PrepareStreamLayers": {
            "weights": weights,
            "prepared": prepared.data_ptr(),
            "preparedSizeInBytes": len(prepared),
        },
        "GetStreamLayersWorkspaceSize": {**counts, "sizeInBytes": ctypes.byref(size)},
        "RunStreamLayers": {
            **counts,
            **data,
            "prepared": prepared.data_ptr(),
            "lengths": None,
            "slots": capi.ints(list(range(batch))),
            "workspace": workspace.data_ptr(),
            "workspaceSizeInBytes": len(workspace),
        },
    }
    for name, arguments in calls.items():
        each_allocation_fails(
            name,
            lambda name=name, arguments=arguments: capi.call(name, **common, **arguments),
            lambda: bytes_of(size, prepared, y, h, c),
        )


def check_copies() -> None:
    handle = capi.cpu_handle()
    values, out = torch.randn(3), torch.zeros(3)
    source, target = values.data_ptr(), out.data_ptr()
    calls: dict[str, dict[str, Any]] = {
        "Copy": {"handle": handle.pointer, "to": target, "from": source, "sizeInBytes": 12}
    }
    sequences = {"handle": handle.pointer, "seqLength": 2, "batchSizes": capi.ints([2, 1]), "order": capi.ints([1, 0])}
    sequences |= {"rowBytes": 1, "stepStride": 2, "sequenceStride": 1}
    calls["PackSequences"] = {**sequences, "padded": source, "packed": target}
    calls["UnpackSequences"] = {**sequences, "packed": source, "padded": target, "paddedLength": 3}
    for name, arguments in calls.items():
        each_allocation_fails(
            name, lambda name=name, arguments=arguments: capi.call(name, **arguments), lambda: bytes_of(out)
        )


if __name__ == "__main__":
    torch.manual_seed(1)
    torch.set_num_threads(2)
    parts = {"layers": check_layers, "around": check_around_layers, "objects": check_objects, "losses": check_losses}
    parts |= {"layer_norm": check_layer_norm, "search": check_search, "streams": check_stream_layers}
    parts |= {"copies": check_copies, "prepared": check_prepared_calls}
    for name in sys.argv[1:]:
        parts[name]()
    print("called:", *sorted(called))
