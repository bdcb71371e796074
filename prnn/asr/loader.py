"""Batches for a training, prepared beside it, in an order that a resumed training continues."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, cycle, islice
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from .dataset import Batch, Position, Request
from .errors import InputError
from .packed_batch import PackedBatch, Slots
from .sampler import EpochSampler

PREFETCH = 4  # batches that each process prepares ahead
_BATCH_BYTES = 2**22


class Source(Protocol):
    """A dataset that makes batches."""

    def batch(self, request: Request) -> Batch:
        """Makes one. Raises InputError for an utterance that cannot be used."""
        ...


class _Sent(Dataset[Batch | PackedBatch | InputError]):
    """The dataset of a DataLoader's processes. Errors about unusable utterances are returned: one that is raised there
    would carry that process's traceback in its message."""

    def __init__(self, source: Source, slots: Slots | None) -> None:
        self._source = source
        self._slots = slots

    def __getitem__(self, numbered: Any) -> Batch | PackedBatch | InputError:
        number, request = numbered
        try:
            batch = self._source.batch(request)
        except InputError as error:
            return error
        return batch if self._slots is None else PackedBatch(batch, self._slots, number)


class _Numbered(Sampler[tuple[int, Request]]):
    """Requests, with the numbers of the slots for their batches."""

    def __init__(self, requests: Iterable[Request], slots: int) -> None:
        self._requests = requests
        self._slots = slots

    def __iter__(self) -> Iterator[tuple[int, Request]]:
        return zip(cycle(range(self._slots)), self._requests)

    def __len__(self) -> int:
        return len(self._requests)  # type: ignore[arg-type]  # asked for where it is a list


def _as_it_is(batch: Any) -> Any:
    return batch


def _leave_interrupts(worker: int) -> None:
    """Ctrl-C reaches all processes of a terminal: the training ends its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class _Loader:
    """A DataLoader that draws nothing from torch's global generator, which serves weights and dropout.

    Args:
        source: makes the batches.
        requests: for them.
        workers: processes that make them; 0 makes them here.
        registered: lets a GPU read the batches' slots. Features and masks of a batch then stay until the second batch
            after it is asked for.
        batch_bytes: bytes of a slot.
    """

    def __init__(
        self, source: Source, requests: Iterable[Request], workers: int, registered: bool, batch_bytes: int
    ) -> None:
        # As many batches are under way as the processes prepare ahead; a new request is sent before the batch that has
        # been received is returned, and the batch before it may still be on its way to a GPU.
        self._slots = Slots(workers * PREFETCH + 2, batch_bytes) if workers else None
        self._registered = registered
        self._loader: DataLoader[Any] = DataLoader(
            _Sent(source, self._slots),
            sampler=_Numbered(requests, len(self._slots) if self._slots is not None else 1),
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=workers,
            worker_init_fn=_leave_interrupts,
            persistent_workers=workers > 0,
            prefetch_factor=PREFETCH if workers else None,
            multiprocessing_context="fork" if workers else None,  # slots and caches are shared with forked processes
            generator=torch.Generator(),
        )

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        received = iter(self._loader)  # after which the processes are there, and have none of a GPU's mappings
        if self._slots is not None and self._registered:
            self._slots.register()
        for batch in received:
            if isinstance(batch, InputError):
                raise batch
            if isinstance(batch, PackedBatch):
                assert self._slots is not None
                batch = batch.batch(self._slots)
            yield batch

    def close(self) -> None:
        """Ends the processes. For each that lives when the program ends, torch before 2.13 waits five seconds."""
        if isinstance(self._loader._iterator, _MultiProcessingDataLoaderIter):
            self._loader._iterator._shutdown_workers()
        self._loader._iterator = None
        if self._slots is not None:
            self._slots.close()


class Batches:
    """Iterates over the given batches of a dataset.

    Args:
        source: makes the batches.
        batches: the items of each batch, as the source takes them.
        workers: processes that prepare them; 0 prepares them in this one.
        batch_bytes: most bytes of a batch that goes from process to process in memory prepared for it.

    Raises:
        InputError: when the iteration comes to an utterance that cannot be used.
    """

    def __init__(
        self, source: Source, batches: Sequence[Any], workers: int = 0, batch_bytes: int = _BATCH_BYTES
    ) -> None:
        requests = [Request(items, Position(0, number)) for number, items in enumerate(batches, 1)]
        self._loader = _Loader(source, requests, workers, False, batch_bytes)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._loader)

    def close(self) -> None:
        """Ends the processes that prepare batches."""
        self._loader.close()


class _Requests(Sampler[Request]):
    """All batches from a position on, epoch after epoch, without end."""

    def __init__(self, sampler: EpochSampler, process: int, processes: int) -> None:
        self._sampler = sampler
        self._share = process, processes
        self.start = Position(0, 0)

    def __iter__(self) -> Iterator[Request]:
        for epoch in count(self.start.epoch):
            done = self.start.batch if epoch == self.start.epoch else 0
            for number, items in enumerate(islice(self._sampler.epoch(epoch, *self._share), done, None), done + 1):
                yield Request(items, Position(epoch, number))


class BatchLoader:
    """Iterates over the batches of a pass over the data, then, iterated again, of the next. The processes that prepare
    batches live as long as the loader, and go on between passes.

    Args:
        source: makes the batches.
        sampler: chooses the utterances of each batch.
        workers: processes that prepare batches beside the training; 0 prepares them in it, where features are cached.
        process: number of this one of the processes that train together.
        processes: the number of processes that train together.
        registered: lets a GPU read the memory of the batches of other processes. A batch's features and masks then
            stay until the second batch after it is asked for, and whoever copies them waits for that before.
        batch_bytes: as for :class:`Batches`.
    """

    def __init__(
        self,
        source: Source,
        sampler: EpochSampler,
        workers: int = 0,
        process: int = 0,
        processes: int = 1,
        registered: bool = False,
        batch_bytes: int = _BATCH_BYTES,
    ) -> None:
        self.pass_batches = max(1, len(sampler) // processes)
        self.sampler = sampler
        self._requests = _Requests(sampler, process, processes)
        self._loader = _Loader(source, self._requests, workers, registered, batch_bytes)
        self._batches: Iterator[Batch] | None = None
        self._done = 0
        self._last = sys.maxsize

    def start(self, after: Position, done: int) -> None:
        """Goes on from a position, after so many batches of this process, counted from the beginning of the first pass.

        Args:
            after: a batch's ``after``.
            done: batches.
        """
        self._requests.start = after
        self._batches = None
        self._done = done

    def end(self, last: int) -> None:
        """Ends the last pass early, after so many batches from the beginning of the first one."""
        self._last = last

    def __len__(self) -> int:
        """Batches in the pass that is under way, or begins."""
        begun = self._done // self.pass_batches * self.pass_batches
        return max(1, min(self.pass_batches, self._last - begun))

    def __iter__(self) -> Iterator[Batch]:
        if self._batches is None:
            self._batches = iter(self._loader)
        for batch in islice(self._batches, len(self) - self._done % self.pass_batches):
            self._done += 1
            yield batch

    def close(self) -> None:
        """Ends the processes that prepare batches."""
        self._batches = None
        self._loader.close()


class Prefetcher:
    """Prepares a loader's batches for training, on a GPU one batch ahead: copies to the device, and the features of
    samples, run on a stream of their own beside the step before.

    Args:
        loader: yields the batches.
        prepare: makes a batch ready for training, on the given device.
        device: of the training, asked for when an iteration begins.

    Attributes:
        waited: seconds that iterations have waited for the loader.
    """

    def __init__(
        self,
        loader: BatchLoader,
        prepare: Callable[[Batch, torch.device], Batch],
        device: Callable[[], torch.device],
    ) -> None:
        self._loader = loader
        self._prepare = prepare
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        self.waited = 0.0

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        device = self._device()
        batches = self._waited_for()
        if device.type != "cuda":
            yield from (self._prepare(batch, device) for batch in batches)
            return
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)
        ready: tuple[Batch, torch.cuda.Event] | None = None
        for batch in batches:
            with torch.cuda.stream(self._stream):
                following = self._prepare(batch, device), self._stream.record_event()
            if ready is not None:
                yield self._taken(*ready)
                ready[1].synchronize()  # the loader may use its memory again
            ready = following
        if ready is not None:
            yield self._taken(*ready)

    def _taken(self, batch: Batch, prepared: torch.cuda.Event) -> Batch:
        """The batch, for computations of the stream that is current now."""
        current = torch.cuda.current_stream(batch.features.device)
        current.wait_event(prepared)
        batch.features.record_stream(current)
        return batch

    def _waited_for(self) -> Iterator[Batch]:
        batches = iter(self._loader)
        while True:
            began = time.perf_counter()
            batch = next(batches, None)
            self.waited += time.perf_counter() - began
            if batch is None:
                return
            yield batch
