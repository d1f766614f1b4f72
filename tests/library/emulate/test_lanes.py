"""Streams, lanes and threads of emulated ranks: what goes on at the same time, and what waits for what."""

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.distributed as dist

import worldsize as ws
from worldsize import emulate, hardware, pricing

NUM_LAYERS, WIDTH = 5, 256


def emulated(fn, *args, world_size=1, **options):
    return ws.run(
        fn, *args, world_size=world_size, cluster="dgx-h100", echo=False, timeout_s=120, **{"compute": "none"} | options
    )


def value(fn, *args, **options):
    return emulated(fn, *args, **options).values[0]


class Timed(torch.autograd.Function):
    """The identity, which takes this long forward and backward."""

    @staticmethod
    def forward(ctx, tensor, forward_s, backward_s):
        ctx.backward_s = backward_s
        emulate.spend(forward_s)
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        emulate.spend(ctx.backward_s)
        return gradient, None, None


def fully_sharded_s(forward_s, backward_s):
    """Seconds of a second forward and of its backward with FSDP2, layers taking these times each."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    class Layer(torch.nn.Linear):
        def forward(self, tensor):
            return super().forward(Timed.apply(tensor, forward_s, backward_s))

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = torch.nn.Sequential(*[Layer(WIDTH, WIDTH, bias=False) for _ in range(NUM_LAYERS)])
    for layer in [*model, model]:
        fully_shard(layer, mesh=mesh)
    inputs = torch.ones(1, WIDTH, requires_grad=True)
    for _ in range(2):
        times_s = [emulate.elapsed()]
        loss = model(inputs).sum()
        times_s.append(emulate.elapsed())
        loss.backward()
        times_s.append(emulate.elapsed())
    return times_s[1] - times_s[0], times_s[2] - times_s[1]


def price_s(op, cluster="dgx-h100"):
    return pricing.price(op, WIDTH * WIDTH * 4, range(4), hardware.cluster(cluster)).time_s


@pytest.mark.parametrize("share", [0.25, 0.5, 3.0])
def test_fsdp2_overlaps_as_its_formula_says(share):
    gather_s, scatter_s = price_s("all_gather"), price_s("reduce_scatter")
    forward_s, backward_s = share * gather_s, share * (gather_s + scatter_s) / 2
    run = emulated(fully_sharded_s, forward_s, backward_s, world_size=4)
    took_forward_s, took_backward_s = run.values[0]
    hidden_s = max(forward_s, gather_s)
    assert took_forward_s == pytest.approx(gather_s + (NUM_LAYERS - 1) * hidden_s + forward_s, rel=1e-9)
    compute_bound_s = gather_s + NUM_LAYERS * backward_s + scatter_s  # all but the first gather and last scatter hide
    network_bound_s = NUM_LAYERS * (gather_s + scatter_s)  # the network never pauses
    assert took_backward_s == pytest.approx(max(compute_bound_s, network_bound_s), rel=1e-2)


def two_streams():
    """Times at which two streams and the default one are done, with 3 s of work each and one event between them."""
    first, second = torch.cpu.Stream(), torch.cpu.Stream()
    with torch.cpu.stream(first):
        emulate.spend(3.0)
        half = first.record_event()
        emulate.spend(1.0)
    with torch.cpu.stream(second):
        second.wait_event(half)
        emulate.spend(3.0)
    emulate.spend(2.0)
    times_s = [emulate.elapsed()]
    for stream in (first, second):
        torch.cpu.current_stream().wait_stream(stream)
        times_s.append(emulate.elapsed())
    return times_s


def test_streams_go_on_beside_each_other_and_wait_for_events():
    assert value(two_streams) == [2.0, 4.0, 6.0]


def after_the_program_waited():
    stream = torch.cpu.Stream()
    with torch.cpu.stream(stream):
        emulate.spend(1.0)
    emulate.spend(5.0)
    with torch.cpu.stream(stream):  # the program is ahead: this starts at 1
        emulate.spend(1.0)
    torch.cpu.current_stream().wait_stream(stream)
    first_s = emulate.elapsed()  # here the program waits, until 5
    with torch.cpu.stream(stream):
        emulate.spend(1.0)
    torch.cpu.synchronize()
    return first_s, emulate.elapsed()


def test_what_is_issued_starts_no_earlier_than_the_program_last_waited():
    assert value(after_the_program_waited) == (5.0, 6.0)


def loading(load_s, step_s, num_steps):
    """Seconds of steps whose data a lane loads one step ahead."""

    def load():
        with emulate.lane("loader") as batch:
            emulate.spend(load_s)
        return batch

    batch = load()
    for _ in range(num_steps):
        batch.join()
        batch = load()
        emulate.spend(step_s)
    return emulate.elapsed()


@pytest.mark.parametrize(("load_s", "step_s"), [(1.0, 3.0), (3.0, 1.0)])
def test_a_loader_hides_behind_the_steps(load_s, step_s):
    run = emulated(loading, load_s, step_s, 4)
    assert run.values[0] == load_s + 3 * max(load_s, step_s) + step_s
    assert {event.stream for event in run.timeline.of(0)} == {"compute", "loader"} | (
        {"wait"} if run.timeline.time_s(0, "wait") else set()
    )


def after_own_work():
    emulate.spend(5.0)
    with emulate.lane("copy") as copied:
        emulate.spend(1.0)
    copied.join()
    return emulate.elapsed()


def test_a_block_starts_no_earlier_than_the_rank_comes_to_it():
    assert value(after_own_work) == 6.0


def broken_off():
    try:
        with emulate.lane("copy") as copied:
            emulate.spend(1.0)
            raise OSError
    except OSError:
        copied.join()
    return emulate.elapsed()


def test_a_block_that_fails_took_its_time_too():
    assert value(broken_off) == 1.0


@pytest.mark.parametrize("duration_s", [float("nan"), float("inf"), -1.0])
def test_only_a_length_of_time_can_be_spent(duration_s):
    with pytest.raises(ValueError, match="must be a number of seconds, 0 or more"):
        emulate.spend(duration_s)


def spend_numbers_of_all_kinds():
    for duration_s in (1, np.float32(2), torch.tensor(4.0)):
        emulate.spend(duration_s)
    return emulate.elapsed()


def test_numbers_of_numpy_and_torch_can_be_spent():
    assert value(spend_numbers_of_all_kinds) == 7.0


def a_long_chain():
    lanes = [f"lane {number}" for number in range(1500)]
    for name in reversed(lanes):  # so that each comes before the one that it waits for
        with emulate.lane(name):
            pass
    before = None
    for name in lanes:
        with emulate.lane(name) as here:
            if before:
                before.join()
            emulate.spend(1.0)
        before = here
    before.join()
    return emulate.elapsed()


def test_any_number_of_lanes_can_wait_for_one_another():
    assert value(a_long_chain) == 1500.0


def test_a_lane_needs_a_name():
    with pytest.raises(ws.RankFailed, match="a lane needs a name"):
        emulated(lane_without_name)


def lane_without_name():
    with emulate.lane(""):
        pass


def test_off_the_emulated_cluster_a_lane_is_only_a_block():
    with emulate.lane("loader") as batch:
        found = 1
    batch.join()
    assert found == 1


def in_threads():
    threads = [threading.Thread(target=emulate.spend, args=(time_s,)) for time_s in (1.0, 4.0)]
    for thread in threads:
        thread.start()
        emulate.spend(0.5)  # the second starts half a second later
    for thread in threads:
        thread.join()
    return emulate.elapsed()


def test_threads_have_clocks_of_their_own():
    assert value(in_threads) == 4.5


def in_a_pool():
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(emulate.spend, 1.0)
        emulate.spend(3.0)
        late = pool.submit(emulate.spend, 1.0)  # the pool's thread is idle since 1
        early.result()
        between_s = emulate.elapsed()
        late.result()
        return between_s, emulate.elapsed()


def test_a_result_is_there_when_its_thread_has_come_to_it():
    assert value(in_a_pool) == (3.0, 4.0)


def through_a_queue(load_s, step_s, num_items, places):
    """When the last of several items has been used, and when its producer had put it."""
    items: queue.Queue[int] = queue.Queue(places)

    def produce():
        for item in range(num_items):
            emulate.spend(load_s)
            items.put(item)

    producer = threading.Thread(target=produce)
    producer.start()
    for _ in range(num_items):
        items.get()
        emulate.spend(step_s)
    producer.join()
    return emulate.elapsed()


@pytest.mark.parametrize("places", [0, 1])
def test_a_queue_passes_on_the_time(places):
    assert value(through_a_queue, 1.0, 3.0, 4, places) == 1 + 4 * 3
    assert value(through_a_queue, 3.0, 1.0, 4, places) == 4 * 3 + 1


def put_into_a_full_queue():
    """When a producer is done whose items take 1 s each, where one has room and a use takes 10 s."""
    items: queue.Queue[int] = queue.Queue(1)
    done_s = []

    def produce():
        for item in range(3):
            emulate.spend(1.0)
            items.put(item)
        done_s.append(emulate.elapsed())

    producer = threading.Thread(target=produce)
    producer.start()
    for _ in range(3):
        items.get()
        emulate.spend(10.0)
    producer.join()
    return done_s[0]


def test_a_full_queue_holds_up_who_puts():
    assert value(put_into_a_full_queue) == 11.0


def work_in_a_thread():
    left, right = torch.ones(512, 512), torch.ones(512, 512)
    thread = threading.Thread(target=torch.mm, args=(left, right))
    thread.start()
    torch.mm(left, right)
    thread.join()
    both_s = emulate.elapsed()
    torch.mm(left, right)
    return both_s, emulate.elapsed() - both_s


def test_work_in_a_thread_is_priced_there():
    run = emulated(work_in_a_thread, compute="flops")
    both_s, one_s = run.values[0]
    assert both_s < 1.5 * one_s + 3e-6  # filling the two matrices, and one product beside the other
    (in_thread,) = [event for event in run.timeline.of(0) if event.stream == "thread 1"]
    assert in_thread.duration_s == pytest.approx(one_s)


def train_by_power_sgd():
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(3)])
    model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for _ in range(4):
        model.zero_grad()
        model(torch.ones(8, 64)).sum().backward()


def test_callbacks_that_communicate_do_so_in_the_same_order_in_every_run():
    one, other = (emulated(train_by_power_sgd, world_size=2, compute="flops").timeline for _ in range(2))
    assert one.events == other.events
    assert any(event.stream == "callbacks" and event.is_work for event in one.of(0))


def work_in_a_callback(callback_s, backward_s):
    """Seconds of a backward in which the second layer's gradients are reduced while the first one's still compute."""
    first, second = torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False)
    futures = []

    def reduce(gradient):
        def work(_):
            emulate.spend(callback_s)

        futures.append(dist.all_reduce(gradient.clone(), async_op=True).get_future().then(work))

    second.weight.register_hook(reduce)
    hidden = Timed.apply(first(torch.ones(1, 4)), 0.0, backward_s)
    loss = second(hidden).sum()
    start_s = emulate.elapsed()
    loss.backward()
    return emulate.elapsed() - start_s


@pytest.mark.parametrize(("callback_s", "backward_s", "total_s"), [(1.0, 3.0, 3.0), (3.0, 1.0, 3.0)])
def test_a_callback_works_beside_backward_which_waits_for_it_at_its_end(callback_s, backward_s, total_s):
    assert value(work_in_a_callback, callback_s, backward_s, world_size=2) == pytest.approx(total_s, rel=1e-3)


def compute_after_gathers(pause_s, is_pause_before_then):
    """A step under DDP whose hook computes once two gathers are done: before it says so, or after."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256, bias=False))

    def hook(_state, bucket):
        buffer, futures = bucket.buffer(), []
        for _ in range(2):
            parts = buffer.new_empty(2, len(buffer))
            futures.append(dist.all_gather(list(parts.unbind()), buffer, async_op=True).get_future())
            if not is_pause_before_then and dist.get_rank() == 1:
                time.sleep(pause_s)
        together = torch.futures.collect_all(futures)
        if is_pause_before_then:
            time.sleep(pause_s)
        square = buffer.view(256, 256)
        return together.then(lambda _: torch.linalg.multi_dot([square] * 20).flatten())

    model.register_comm_hook(None, hook)
    model(torch.ones(1, 256)).sum().backward()


def test_what_a_callback_of_collected_futures_computes_counts_whoever_comes_first():
    given = {"world_size": 2, "compute": "flops"}
    late, early = (emulated(compute_after_gathers, 0.5, is_early, **given).timeline for is_early in (False, True))
    assert late.events == early.events
    work_s = sum(event.duration_s for event in late.of(0) if event.stream == "callbacks" and event.is_work)
    assert work_s > 20e-6


def fail_in_a_collected_callback():
    def fail(done):
        raise KeyError("no such thing")

    torch.futures.collect_all([dist.barrier(async_op=True).get_future()]).then(fail).wait()


def test_what_goes_wrong_in_a_callback_of_collected_futures_is_its_waiters():
    with pytest.raises(ws.RankFailed, match="no such thing"):
        emulated(fail_in_a_collected_callback, world_size=2)
