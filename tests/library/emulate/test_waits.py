"""Threads of a rank that wait: for the conductor, or for one another."""

import os
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import worldsize as ws
from worldsize import emulate
from worldsize.emulate.worker.waits import Waits
from worldsize.faults import LostRank


class Counted:
    """Waits, and how often a thread went to sleep when no other could go on."""

    def __init__(self):
        self.stills = []
        self.waits = Waits(lambda: self.stills.append(self.waits._num_awake == 0))

    def thread(self, run):
        """A started thread that counts."""

        thread = threading.Thread(target=lambda: self.waits.run(thread, run))
        self.waits.start(thread)
        thread.start()
        return thread

    def until(self, num_waits):
        """Sleep, off the count, until so many threads wait."""
        while len(self.waits._waits) < num_waits:
            time.sleep(0.001)


def test_a_thread_that_is_handed_a_lock_is_awake_before_it_runs():
    counted = Counted()
    lock = counted.waits.lock()
    lock.acquire()
    thread = counted.thread(lambda: lock.acquire())
    counted.until(1)
    assert counted.waits._num_awake == 1
    lock.release()
    assert counted.waits._num_awake >= 1 and not counted.waits._waits
    thread.join()
    assert counted.waits._num_awake == 1 and lock.locked()


def test_locks_are_handed_over_in_the_order_in_which_threads_came():
    counted, order = Counted(), []
    lock = counted.waits.lock()
    lock.acquire()

    def enter(name):
        with lock:
            order.append(name)

    threads = []
    for name in range(5):
        threads.append(counted.thread(lambda name=name: enter(name)))
        counted.until(name + 1)
    lock.release()
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4] and not lock.locked()


def test_a_wait_with_a_limit_ends_and_leaves_the_lock_to_others():
    counted = Counted()
    lock = counted.waits.lock()
    assert lock.acquire() and not lock.acquire(blocking=False) and not lock.acquire(timeout=0.01)
    assert counted.waits._num_awake == 1 and not counted.waits._waits
    lock.release()
    assert lock.acquire(timeout=0.01)
    lock.release()
    with pytest.raises(RuntimeError, match="release unlocked lock"):
        lock.release()
    with pytest.raises(ValueError, match="non-blocking"):
        lock.acquire(False, 1.0)


def test_still_is_when_the_last_thread_goes_to_sleep_and_one_waits_for_an_answer():
    counted = Counted()
    waits = counted.waits
    lock = waits.lock()
    lock.acquire()
    thread = counted.thread(lambda: lock.acquire())
    counted.until(1)
    assert waits.still() is None
    waits.wait_for_answer(7)
    still = waits.still()
    assert still.numbers == (7,) and not still.is_limited
    waits.answer(7)
    assert waits.still() is None and waits._num_awake == 1
    waits.end_wait_for_answer()
    assert waits._num_awake == 1
    lock.release()
    thread.join()


# on an emulated cluster


def emulated(fn, *args, world_size=2, **options):
    return ws.run(fn, *args, world_size=world_size, cluster="dgx-h100", echo=False, compute="none", **options)


def in_thread(function):
    """What a function returned in a thread that was waited for."""
    returned = []
    thread = threading.Thread(target=lambda: returned.append(function()))
    thread.start()
    thread.join()
    return returned[0]


def serve_in_a_thread():
    if dist.get_rank() == 0:
        return in_thread(lambda: [dist.recv(torch.zeros(2)) for _ in range(dist.get_world_size() - 1)])
    emulate.spend(1.0 - 0.1 * dist.get_rank())
    return dist.send(torch.ones(2), 0)


def serve_to_a_queue():
    if dist.get_rank():
        emulate.spend(1.0 - 0.1 * dist.get_rank())
        return dist.send(torch.ones(2), 0)
    items, num_others = queue.Queue(), dist.get_world_size() - 1
    thread = threading.Thread(target=lambda: [items.put(dist.recv(torch.zeros(2))) for _ in range(num_others)])
    thread.start()
    return [items.get() for _ in range(num_others)]


def serve_in_a_pool():
    if dist.get_rank():
        emulate.spend(1.0 - 0.1 * dist.get_rank())
        return dist.send(torch.ones(2), 0)
    with ThreadPoolExecutor(2) as pool:
        pool.submit(int).result()  # its thread then waits for work
        return [pool.submit(dist.recv, torch.zeros(2)).result() for _ in range(dist.get_world_size() - 1)]


def serve_under_a_lock():
    if dist.get_rank():
        emulate.spend(1.0 - 0.1 * dist.get_rank())
        return dist.send(torch.ones(2), 0)
    lock, sources = threading.Lock(), []

    def receive():
        with lock:
            sources.append(dist.recv(torch.zeros(2)))

    threads = [threading.Thread(target=receive) for _ in range(dist.get_world_size() - 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sources


@pytest.mark.parametrize("serve", [serve_in_a_thread, serve_to_a_queue, serve_in_a_pool, serve_under_a_lock])
def test_a_receive_from_any_rank_ends_also_in_a_thread(serve):
    assert emulated(serve, world_size=4).values[0] == [3, 2, 1]


def ask_in_threads():
    times_s = [0.0] * 4

    def ask(place):
        emulate.spend(float(place))
        times_s[place] = emulate.elapsed()

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    before_s = emulate.elapsed()
    for thread in threads:
        thread.join()
    return [before_s, *times_s]


def test_threads_of_a_rank_ask_for_the_time_at_once():
    assert emulated(ask_in_threads).values == [[0.0, 0.0, 1.0, 2.0, 3.0]] * 2


def wait_beside_a_busy_main(busy_s):
    group, said = dist.new_group(timeout=timedelta(seconds=2)), []

    def reduce():
        dist.all_reduce(torch.ones(1), group=group)
        said.append("done")

    if dist.get_rank() == 1:
        thread = threading.Thread(target=reduce)
        thread.start()
        time.sleep(busy_s)  # on this machine, and no virtual time
        dist.send(torch.ones(1), 0)
        thread.join()
    else:
        dist.recv(torch.ones(1), 1)
        reduce()
    return said


@pytest.mark.parametrize("busy_s", [0.0, 0.4])
def test_a_limited_wait_in_a_thread_does_not_end_because_this_machine_is_slow(busy_s):
    assert emulated(wait_beside_a_busy_main, busy_s).values == [["done"]] * 2


def wait_crosswise():
    in_thread(lambda: dist.recv(torch.ones(1), 1 - dist.get_rank()))


def test_a_deadlock_in_threads_is_seen_and_has_its_lines():
    with pytest.raises(ws.RunTimeout) as caught:
        emulated(wait_crosswise)
    report = str(caught.value)
    assert report.startswith("Deadlock: ") and "Ranks 0 and 1 wait for each other" in report
    assert "in_thread(lambda: dist.recv(torch.ones(1), 1 - dist.get_rank()))" in report


def outlive_a_loss():
    def reduce():
        try:
            for _ in range(2):
                dist.all_reduce(torch.ones(1))
        except dist.DistBackendError as error:
            return str(error)
        return ""

    return in_thread(reduce)


def test_a_loss_is_heard_by_a_thread():
    losses = [LostRank(1, after_calls=1, is_heard_after_s=0.5)]
    said = emulated(outlive_a_loss, world_size=3, faults=losses).values
    assert said[1] is None and all("rank 1 was lost" in said[rank] for rank in (0, 2))


def ask_beside_a_monitor():
    stop = threading.Event()
    monitor = threading.Thread(target=lambda: stop.wait(60), daemon=True)  # as that of a progress bar
    monitor.start()
    time_s = emulate.elapsed()
    stop.set()
    monitor.join()
    return time_s


def test_a_daemon_that_sleeps_keeps_no_rank_awake():
    assert emulated(ask_beside_a_monitor).values == [0.0, 0.0]


def look_now_and_then():
    """Wait for a thread with a limit, again and again, while it waits for the other rank."""
    if dist.get_rank() == 1:
        emulate.spend(1.0)
        return dist.send(torch.ones(1), 0)
    thread = threading.Thread(target=lambda: dist.recv(torch.zeros(1)))
    thread.start()
    while thread.is_alive():
        thread.join(0.01)
    return emulate.elapsed() >= 1.0


def test_a_wait_that_ends_by_the_clock_is_no_deadlock():
    assert emulated(look_now_and_then).values == [True, None]


def look_at_a_list():
    """Wait for a thread by looking now and then: nothing reports that wait."""
    found = []
    thread = threading.Thread(target=lambda: found.append(emulate.elapsed()))
    thread.start()
    while not found:
        time.sleep(0.05)
    return found


def wait_in_cpp():
    def reduce():
        work = dist.all_reduce(torch.ones(1), async_op=True)
        return work.get_future().then(lambda _: emulate.elapsed()).wait()

    return in_thread(reduce)


@pytest.mark.parametrize(("wait", "value"), [(look_at_a_list, [0.0]), (wait_in_cpp, 0.0)])
def test_a_rank_whose_other_threads_sleep_unseen_is_still_after_a_while(wait, value):
    assert emulated(wait).values == [pytest.approx(value, abs=1e-3)] * 2


def send_when_it_is_time():
    def send():
        threading.Event().wait(0.5)  # by the clock of this machine
        dist.send(torch.ones(1), 1)

    if dist.get_rank() == 0:
        threading.Thread(target=send, daemon=True).start()
    received = torch.zeros(1)
    dist.recv(received, 1 - dist.get_rank())
    if dist.get_rank() == 1:
        dist.send(received, 0)
    return received.item()


def send_after_an_exception():
    items = queue.Queue()

    def hook(_):
        time.sleep(0.3)
        items.put(1.0)

    def fail():
        raise ValueError("on purpose")

    if dist.get_rank() == 1:
        received = torch.zeros(1)
        dist.recv(received, 0)
        return received.item()
    threading.excepthook = hook
    threading.Thread(target=fail).start()
    dist.send(torch.tensor([items.get()]), 1)
    return 1.0


@pytest.mark.parametrize("act", [send_when_it_is_time, send_after_an_exception])
def test_what_a_thread_still_does_late_is_no_deadlock(act):
    assert emulated(act).values == [1.0, 1.0]


def start_twice():
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    with pytest.raises(RuntimeError):
        thread.start()
    thread.join()
    return emulate.elapsed()


def fork_beside_threads():
    """How many of the children end that are forked while threads contend for a lock."""
    lock, stop = threading.Lock(), threading.Event()

    def contend():
        while not stop.is_set():
            with lock:
                pass

    threads = [threading.Thread(target=contend) for _ in range(3)]
    for thread in threads:
        thread.start()
    ended = []
    for _ in range(40):
        child = os.fork()
        if child == 0:
            threading.Thread(target=int).start()
            os._exit(0)
        ended.append(os.waitpid(child, 0)[1])
    stop.set()
    for thread in threads:
        thread.join()
    return ended.count(0)


@pytest.mark.parametrize(("act", "value"), [(start_twice, 0.0), (fork_beside_threads, 40)])
def test_threads_and_forks_keep_their_locks_in_order(act, value):
    assert emulated(act).values == [value] * 2


def ask_both():
    work = dist.all_reduce(torch.ones(1_000), async_op=True)
    asked = [work.is_completed(), work.is_success()]
    work.wait()
    return [*asked, work.is_completed(), work.is_success()]


def test_to_ask_another_question_is_no_polling():
    assert emulated(ask_both).values == [[False, False, True, True]] * 2
