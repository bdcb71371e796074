"""Batches for a training, prepared beside it, in an order that a resumed training continues."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count, cycle, islice
from typing import Any, Protocol, TypeVar

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from .dataset import Batch, Position, Request
from .errors import InputError
from .packed_batch import PackedBatch, Slots
from .sampler import EpochSampler

_T = TypeVar("_T")
_Prepared = tuple[Batch, torch.cuda.Event]  # for the stream that waits for the event

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
    samples, run on a stream of their own beside the step before; `begin` has a thread send them there.

    Args:
        loader: yields the batches.
        prepare: makes a batch ready for training, on the given device.
        device: of the training, asked for when an iteration begins.

    Attributes:
        waited: seconds that iterations have waited for the loader, or the thread.
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
        self._thread: ThreadPoolExecutor | None = None  # while there is an iteration on a GPU
        self._following: Future[_Prepared | None] | None = None
        self._batches: Iterator[Batch] = iter(())
        self._events: list[torch.cuda.Event] = []  # of batches whose memory the loader does not use again yet
        self.waited = 0.0

    def __len__(self) -> int:
        return len(self._loader)

    def begin(self) -> None:
        """Prepares the batch after the last one that was yielded, in a thread. To be called before what runs long
        without Python's lock, as autograd's backward pass on a GPU; on a CPU it does nothing."""
        if self._thread is not None and self._following is None:
            self._following = self._thread.submit(self._sent, lambda take: take())

    def __iter__(self) -> Iterator[Batch]:
        device = self._device()
        self._batches = iter(self._loader)
        if device.type != "cuda":
            while (batch := self._waited_for(self._next)) is not None:
                yield self._prepare(batch, device)
            return
        self._stream = self._stream or torch.cuda.Stream(device)
        with ThreadPoolExecutor(1, "batches", torch.cuda.set_device, (self._stream.device,)) as self._thread:
            try:
                while (prepared := self._prepared()) is not None:
                    batch, event = prepared
                    current = torch.cuda.current_stream(device)
                    current.wait_event(event)
                    batch.features.record_stream(current)
                    yield batch
            finally:
                self._thread, self._following = None, None

    def _prepared(self) -> _Prepared | None:
        """The batch that the thread has prepared, or, if it has not begun, one prepared now; None at the end."""
        following, self._following = self._following, None
        return self._sent(self._waited_for) if following is None else self._waited_for(following.result)

    def _sent(self, taken: Callable[[Callable[[], Batch | None]], Batch | None]) -> _Prepared | None:
        """Sends the next batch to the device; None at the end. `taken` calls what waits for the loader."""
        assert self._stream is not None
        if len(self._events) > 1:
            self._events.pop(0).synchronize()
        if (batch := taken(self._next)) is None:
            return None
        with torch.cuda.stream(self._stream):
            prepared = self._prepare(batch, self._stream.device)
            self._events.append(self._stream.record_event())
        return prepared, self._events[-1]

    def _next(self) -> Batch | None:
        return next(self._batches, None)

    def _waited_for(self, take: Callable[[], _T]) -> _T:
        began = time.perf_counter()
        try:
            return take()
        finally:
            self.waited += time.perf_counter() - began


class PreparedBesideBackward(Callback):
    """Prepares the next batch during the backward pass, which is another thread's.

    Args:
        batches: of the training.
    """

    def __init__(self, batches: Prefetcher) -> None:
        self._batches = batches

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        self._batches.begin()
