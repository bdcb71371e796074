"""The order of accesses of the wavefront kernels by chunks, run on the CPU under random schedules: kernels_on_cpu/."""

import pathlib
from typing import Any

import pytest
from kernels_on_cpu import build
from kernels_on_cpu.build import Builder, Edit
from kernels_on_cpu.chunks import BACKWARD, BOTH_CHUNKED, FORTY_UNITS, FORWARD, GRU_CHUNKED

pytestmark = build.marks("kernels_on_cpu_chunks_order")


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(tmp_path_factory)


@pytest.fixture(scope="module")
def ordered(builder: Builder) -> pathlib.Path:
    kernels = BOTH_CHUNKED | GRU_CHUNKED | {"kWavefrontChunked half lstm 5", "kWavefrontChunked half gru 5"}
    return builder.run_stack("ordered", kernels, order=True)


def find_unordered(program: pathlib.Path, **options: Any) -> list[tuple[str, str]]:
    return build.find_unordered(program, type="half", **({"cell": "lstm", "layers": 2} | options))


@pytest.mark.parametrize(
    ("hidden", "batches", "chunk", "more"),
    build.first_of_each(
        lambda hidden, batches, chunk, more: "blocks" in more,
        [
            (64, "3,3,3,3", 2, {"initial": 1}),
            (64, "7,7,7,7", 3, {"dropout": 1}),
            (64, "7,7,7,7,7,7,7,7,7", 8, {}),  # copies during a chunk
            (64, "7,7,6,6,6,5,3,3,2,1", 5, {"dropout": 1}),
            (64, "3,3,3,2,2,1,1", 3, {"layers": 3}),
            (128, "7,7,7,7,7,7,7,7,7,7", 2, {}),  # the ring's timesteps again
            (192, "3,3,3", 2, {}),  # a block without units
            (64, "7,7,7,7,7", 2, FORTY_UNITS | {"initial": 1}),
            (64, "7,7,6,6,6,5,3,3,2,1", 5, FORTY_UNITS | {"dropout": 1}),
        ],
    ),
)
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_accesses_by_chunks_are_ordered(
    ordered: pathlib.Path, cell: str, hidden: int, batches: str, chunk: int, more: dict[str, int]
) -> None:
    more = {name: value for name, value in more.items() if cell == "lstm" or name != "initial"}  # of a projection
    assert find_unordered(ordered, cell=cell, hidden=hidden, batches=batches, chunk=chunk, **more) == []


@pytest.mark.parametrize(
    ("hidden", "batches", "chunk", "more"),
    build.first_of_each(
        lambda hidden, batches, chunk, more: "blocks" in more,
        [
            (128, "3,3,3,3", 2, {"layers": 3}),
            (192, "7,7,7,7,7,7,7", 3, {"projection": 192}),  # a last chunk of one timestep
            (128, "7,7,6,6,6,5,3,3,2,1", 5, FORTY_UNITS),
            (192, "3,3,3,2,2,1,1", 3, {"initial": 1}),
        ],
    ),
)
def test_accesses_behind_projections_are_ordered(
    ordered: pathlib.Path, hidden: int, batches: str, chunk: int, more: dict[str, int]
) -> None:
    options = {"projection": 128, "dropout": 1} | more
    assert find_unordered(ordered, hidden=hidden, batches=batches, chunk=chunk, **options) == []


# The order that words alone give: a block makes its words of the ring empty when all have published those of the next
# step, and the other block's sums of its units before that block can send them again.
POLL, PUBLISH, EMPTY_WORDS = "states[i] = load_or_zeros(", "publish_word(to[i] >= 0", "publish_16_bytes(to"
PUBLISH_CANDIDATE = "publish_word(has_word, exchange"
RELOAD = "reload_if_missing(words[i]"
EMPTY_PARTIAL, SEND = "memory.partial[now & 1][place_of_sum + i] =", "chunked_store_to_rank(other_base + kPartial"
BY_WORDS = {
    *((f"read {read}", f"write {EMPTY_WORDS}") for read in (POLL, RELOAD)),
    *((f"write {publish}", f"write {EMPTY_WORDS}") for publish in (PUBLISH, PUBLISH_CANDIDATE)),
    (f"write {EMPTY_PARTIAL}", f"write {SEND}"),
}


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_what_words_alone_order_by_chunks(ordered: pathlib.Path, cell: str) -> None:
    found = find_unordered(ordered, cell=cell, hidden=64, batches="7,7,7,7,7,7,7,7,7,7,7,7", chunk=2, relaxed=1)
    for pair in found:
        assert any(build.is_found(*code, [pair]) for code in BY_WORDS), pair


# Code of accesses.
ADD_SUMS, STORE_SUMS = "of_warp[w] = from[w * kSumVecs]", "to[(GROUP * 2 + tile)"
ADD_SUMS_OF_GATE = "value[w] = sums[w * floats_per_warp + index]"
COPY_STAGE = "copy_row_ahead(wanted, to +"
EMPTY_SLOT, SEND_TO_SLOT = "store_shared(own_base + slots", "chunked_store_to_rank(other_base + slots_of"
STORE_FIRST_SUMS, ADD_FIRST_SUMS = "store_sums(o * 16, first_sums", "&memory.step.sums[w][index]"
COPY_SAVED, DERIVE = "copy_ahead(first + i * kCopiedColumns", "now.gates[own_column + i][own_unit]"
STORE_ROWS, COPY_ROWS_ABOVE = "reinterpret_cast<uint4*>(to + g * hidden) =", "copy_ahead(row + first < a.count, place"
STORE_DROPPED, COPY_ROWS_BELOW = "static_cast<T*>(projection.dropped) + at) =", "copy_ahead(row + first < a.count, to +"
STORE_GRADIENTS = "*reinterpret_cast<uint32_t*>(to + unit) ="
# Code that the defects leave out.
WAIT_FOR_COPIES = '    asm volatile("cp.async.wait_all;" ::: "memory");\n\n'
DEFECTS = (
    Edit(FORWARD, "chunk_blocks += sizes.blocks;\n      __syncthreads();", "chunk_blocks += sizes.blocks;"),
    Edit(FORWARD, "if (!HALF && t > 0) sync_sums_read();", ""),
    Edit(FORWARD, "if (!HALF) arrive_sums_read();", ""),
    Edit(BACKWARD, "    wait_for_cluster();", "    //"),
    Edit(BACKWARD, "    __syncwarp();\n    if (lane == 0) chunked_arrive", "    if (lane == 0) chunked_arrive"),
    Edit(BACKWARD, WAIT_FOR_COPIES, "\n"),
    Edit(BACKWARD, "store_rows(s);\n      __syncthreads();", "store_rows(s);"),
    Edit(BACKWARD, "      } else if (threadIdx.x == 32 && chunk >= 2) {", "      } else if (false) {"),
    Edit(FORWARD, "wait_for_blocks(projection.progress,", "if (false) wait_for_blocks(projection.progress,"),
    Edit(BACKWARD, "wait_for_blocks(progress, blocks,", "if (false) wait_for_blocks(progress, blocks,"),
)


def test_a_missing_order_by_chunks_is_found(builder: Builder) -> None:
    broken = builder.run_stack("unordered", BOTH_CHUNKED | {"kWavefrontChunked half lstm 5"}, DEFECTS, order=True)
    found = find_unordered(broken, hidden=64, batches="7,7,7,7,7,7,7,7", chunk=4)
    for before, later in (
        (f"read {ADD_SUMS}", f"write {COPY_STAGE}"),  # no barrier between a chunk's last timestep and the next product
        (f"read {ADD_SUMS}", f"write {STORE_SUMS}"),  # nobody waits until sums have been read
        (f"write {EMPTY_SLOT}", f"write {SEND_TO_SLOT}"),  # nor for the cluster
        (f"write {STORE_FIRST_SUMS}", f"read {ADD_FIRST_SUMS}"),  # sums are announced before other lanes store them
        (f"write {COPY_SAVED}", f"read {DERIVE}"),  # copies are not waited for
        (f"write {STORE_ROWS}", f"read {COPY_ROWS_ABOVE}"),  # a chunk is counted before all warps have stored it
    ):
        assert build.is_found(before, later, found), (before, later, found)
    found = find_unordered(broken, hidden=64, batches="7,7,7,7", chunk=4, **FORTY_UNITS)
    assert build.is_found(f"read {ADD_SUMS_OF_GATE}", f"write {STORE_SUMS}", found), found
    # Nor for the other blocks' columns of h and of its gradients.
    found = find_unordered(broken, hidden=128, batches="7,7,7,7", chunk=4, projection=128, dropout=1)
    assert build.is_found(f"write {STORE_DROPPED}", f"read {COPY_ROWS_BELOW}", found), found
    assert build.is_found(f"write {STORE_GRADIENTS}", f"read {COPY_ROWS_ABOVE}", found), found
    # Nobody waits until all blocks have made the words of the ring empty.
    found = find_unordered(broken, hidden=64, batches="7,7,7,7,7,7,7,7,7,7,7,7", chunk=2, relaxed=1)
    assert build.is_found(f"write {EMPTY_WORDS}", f"read {POLL}", found), found
