# SPDX-License-Identifier: Apache-2.0
"""weir.Window: one-sided operations, and a parameter server with bounded staleness upon them."""

import threading
import time

import ranks
import schemes
import tally
import torch
import torch.distributed as dist

STEPS = 6
ROWS = 4
RATE = 0.05
WORD = 8  # bytes of a signal or counter


def served(**of_windows):
    """These bytes of operations of windows, and what the program passes to torch.distributed."""
    return ranks.served({**tally.passed(), **of_windows})


def test_put_get_and_signals(rank, size):
    import weir

    for dtype in (torch.float32, torch.int64, torch.bool, torch.bfloat16):
        for count in (1, 30, 5000):
            with weir.Window(torch.zeros(size, count, dtype=dtype), signals=size) as window:
                assert window.elements_of((rank + 1) % size) == size * count
                for target in range(size):
                    data = torch.full((count,), rank + 1, dtype=dtype)
                    window.put_signal(data, target, signal=rank, offset=rank * count, value=3)
                for origin in range(size):
                    window.wait_signal(origin, 3)
                    expected = torch.full((count,), origin + 1, dtype=dtype)
                    assert torch.equal(window.tensor[origin], expected)
                    assert window.signal_value(origin) == 3
                dist.barrier()
                found = torch.zeros(2, count, dtype=dtype)[1]
                window.get(found, (rank + 1) % size, offset=rank * count)
                assert (found == torch.tensor(rank + 1, dtype=dtype)).all()
    one_way = (4 + 8 + 1 + 2) * (1 + 30 + 5000)
    counts = served(PUT_SIGNAL=size * one_way, WAIT_SIGNAL=12 * size * WORD, GET=one_way)
    assert counts["PUT_SIGNAL"].calls == 12 * size, counts


def test_operations_in_flight_and_flush(rank, size):
    import weir

    to = (rank + 1) % size
    with weir.Window(torch.zeros(64, 100), signals=2) as window:
        works = [
            window.put(torch.full((100,), float(i)), to, i * 100, async_op=True) for i in range(64)
        ]
        for work in works:
            work.wait()
        window.flush(to)
        window.signal(to, 0)
        window.wait_signal(0, 1)
        assert (window.tensor == torch.arange(64.0)[:, None]).all()
        dist.barrier()
        # A fence instead: the signal of the second covers the first.
        window.put(torch.full((100,), -1.0), to, 0)
        window.fence(to)
        window.put_signal(torch.full((2, 50), -2.0).t(), to, signal=1, offset=100)
        work = window.wait_signal(1, 1, async_op=True)
        work.wait()
        assert (window.tensor[0] == -1).all() and (window.tensor[1] == -2).all()
        found = torch.zeros(100)
        work = window.get(found, to, 63 * 100, async_op=True)
        work.wait()
        assert (found == 63).all()
        window.flush(async_op=True).wait()
    row = 100 * 4
    served(PUT=65 * row, PUT_SIGNAL=row, GET=row, SIGNAL=WORD, WAIT_SIGNAL=2 * WORD)


def test_counters_are_atomic(rank, size):
    import weir

    with weir.Window(torch.zeros(0), signals=2) as window:
        taken = [window.fetch_add(0, 0) for _ in range(200)]
        everybodys = [None] * size
        dist.all_gather_object(everybodys, taken)
        assert sorted(sum(everybodys, [])) == list(range(200 * size))
        # A lock by compare and swap.
        for _ in range(20):
            while window.compare_swap(0, 1, 0, rank + 1) != 0:
                pass
            assert window.compare_swap(0, 1, rank + 1, 0) == rank + 1
        dist.barrier()
        assert window.fetch_add(0, 1, 0) == 0
    # How often a rank finds the lock taken is a matter of time.
    served(FETCH_ADD=201 * WORD, COMPARE_SWAP=(40 * WORD, float("inf")))


def test_waiting_leaves_other_threads_their_python(rank, size):
    """Rank 0 waits in a thread for the others, who come when another thread of rank 0 tells them
    to: that one runs Python meanwhile."""
    import weir

    with weir.Window(torch.zeros(1), signals=1) as window:
        waiting = threading.Thread(target=window.wait_signal, args=(0, 1))
        waiting.start()
        # This thread runs Python while the other waits: nobody else sends the signal.
        window.signal(rank, 0)
        waiting.join()
    group = dist.new_group()
    later = weir.Window(torch.zeros(1), group=group)

    def message():
        if rank == 0:
            dist.recv(torch.ones(5), 1, group=group, tag=7)
        elif rank == 1:
            dist.send(torch.ones(5), 0, group=group, tag=7)

    calls = {
        "Work.wait": lambda: dist.all_reduce(torch.ones(3), group=group, async_op=True).wait(),
        "recv": message,
        "weir.all_reduce": lambda: weir.all_reduce(torch.ones(3), group=group),
        "the first weir.empty": lambda: weir.empty(10, group=group),
        "barrier": lambda: dist.barrier(group),
        "monitored_barrier": lambda: dist.monitored_barrier(group),
        "new_group": dist.new_group,
        "Window": lambda: weir.Window(torch.zeros(3), group=group).close(),
        "Window.close": later.close,
    }
    for name, call in calls.items():
        # Once more for who asks while another thread waits.
        threads = [threading.Thread(target=call), threading.Thread(target=weir.arena_usage,
                                                                   args=(group,))]  # fmt: skip
        if rank != 0:
            dist.recv(torch.ones(1), 0, tag=8)
        for thread in threads:
            thread.start()
            time.sleep(0.05)
        if rank == 0:
            for other in range(1, size):
                dist.send(torch.ones(1), other, tag=8)
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), name
    assert weir.arena_usage(group).tensor_count >= 0
    tally.add("ALLREDUCE", 3 * 4)  # weir.all_reduce
    served(SIGNAL=WORD, WAIT_SIGNAL=WORD)


def test_wrong_calls(rank, size):
    import weir

    window = weir.Window(torch.zeros(10), signals=1)
    one = torch.ones(1)
    ranks.refused(ValueError, "rank 9", lambda: window.put(one, 9))
    ranks.refused(ValueError, "do not lie", lambda: window.put(torch.ones(11), 0))
    ranks.refused(ValueError, "an offset of -1 elements", lambda: window.put(one, 0, -1))
    ranks.refused(ValueError, "Window.elements_of: rank 9", lambda: window.elements_of(9))
    ranks.refused(ValueError, "signal 1", lambda: window.signal(0, 1))
    ranks.refused(ValueError, "float64", lambda: window.put(one.double(), 0))
    ranks.refused(ValueError, "not contiguous", lambda: window.get(torch.zeros(4, 2).t(), 0))
    ranks.refused(ValueError, "not contiguous", lambda: weir.Window(torch.zeros(4, 2).t()))
    sparse = torch.eye(4).to_sparse()
    ranks.refused(ValueError, "Sparse", lambda: window.put(sparse, 0))
    ranks.refused(ValueError, "Sparse", lambda: weir.Window(sparse))
    ranks.refused(ValueError, "meta", lambda: weir.Window(torch.ones(4, device="meta")))
    ranks.refused(ValueError, "meta", lambda: window.get(torch.ones(4, device="meta"), 0))
    ranks.refused(ValueError, "signals", lambda: weir.Window(torch.zeros(4), signals=-1))
    ranks.refused(ValueError, "signals", lambda: weir.Window(torch.zeros(4), signals=1 << 60))
    ranks.refused(TypeError, "not list", lambda: window.get([0.0], 0))
    ranks.refused(TypeError, "not list", lambda: weir.Window([0.0]))
    # All ranks are told of the first that differs from rank 0.
    last = rank == size - 1
    other = torch.zeros(4, dtype=torch.float64 if last else torch.float32)
    text = f"rank 0 passes a tensor of torch.float32 and 2 signals, and rank {size - 1} a tensor "
    call = lambda: weir.Window(other, signals=2)
    ranks.refused(ValueError, text + "of torch.float64 and 2 signals", call)
    call = lambda: weir.Window(torch.zeros(4), signals=5 if last else 2)
    ranks.refused(ValueError, text + "of torch.float32 and 5 signals", call)
    window.put(one, rank)
    dist.barrier()
    window.retire()
    ranks.refused(ValueError, "closed", lambda: window.put(one, 0))
    assert window.tensor[0] == 1
    served(PUT=4)  # what is refused is not served


# ---- The parameter server ----
# Rank 0 serves by its window, which holds the number of steps whose gradients are all applied, then
# the parameters, a flat tensor, and the gradients. Each worker puts its gradient into its
# slots at the server, one for each step that it may be ahead, and counts in a signal of its own.
# The server signals to each worker when the gradients of one more step are all applied.


def flat_of(tensors):
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def load(net, flat):
    torch.nn.utils.vector_to_parameters(flat, net.parameters())


def gradient(net, flat, worker, step):
    load(net, flat)
    net.zero_grad()
    schemes.loss_of(net, *schemes.batch(1000 * worker + step, ROWS, torch.float32)).backward()
    return flat_of(p.grad for p in net.parameters())


def serve(window, version, parameters, workers, slots, staleness):
    applied = [0] * workers
    announced = 0
    total = 0
    while announced < STEPS:
        # Every gradient adds 1 to the server's last signal after its own.
        total += workers if staleness == 0 else 1
        window.wait_signal(workers, total)
        for worker in range(workers):
            arrived = window.signal_value(worker)
            while applied[worker] < arrived:
                parameters -= RATE * slots[worker, applied[worker] % len(slots[worker])]
                applied[worker] += 1
        while announced < min(applied):
            announced += 1
            version += 1
            for worker in range(workers):
                window.signal(worker + 1, workers + 1)
        total = max(total, sum(applied))


def work_with(window, net, worker, workers, staleness, count):
    read = torch.empty(1 + count)
    for step in range(STEPS):
        # The gradients of all before step - staleness are applied.
        window.wait_signal(workers + 1, max(0, step - staleness))
        window.get(read, 0)
        assert step - staleness <= int(read[0]) <= step, (step, read[0])
        own = gradient(net, read[1:], worker, step)
        slot = worker * (staleness + 1) + step % (staleness + 1)
        window.put_signal(own, 0, signal=worker, offset=1 + count * (1 + slot))
        window.fence(0)  # the server finds the gradient when it finds this
        window.signal(0, workers)


def train_with_server(rank, size, staleness):
    import weir

    net = schemes.model(torch.float32)
    initial = flat_of(net.parameters())
    count, workers = len(initial), size - 1
    slots_per_worker = staleness + 1
    memory = torch.zeros(1 + (1 + workers * slots_per_worker) * count if rank == 0 else 0)
    parameters = memory[1 : 1 + count]
    if rank == 0:
        parameters.copy_(initial)
    with weir.Window(memory, signals=workers + 2) as window:
        dist.barrier()
        if rank == 0:
            slots = memory[1 + count :].view(workers, slots_per_worker, count)
            serve(window, memory[:1], parameters, workers, slots, staleness)
        else:
            work_with(window, net, rank - 1, workers, staleness, count)
    return parameters


def expect_training_served(rank, workers, times_waited):
    """``times_waited``: how often the server waits for gradients, at least and at most."""
    if rank == 0:
        least, most = times_waited
        served(SIGNAL=workers * STEPS * WORD, WAIT_SIGNAL=(least * WORD, most * WORD))
        return
    whole = schemes.bytes_of(schemes.model(torch.float32))
    # A worker reads the number of steps, too.
    moved = {"GET": STEPS * (4 + whole), "PUT_SIGNAL": STEPS * whole}
    served(**moved, SIGNAL=STEPS * WORD, WAIT_SIGNAL=STEPS * WORD)


def test_staleness_0_is_synchronous_descent_bit_for_bit(rank, size):
    found = train_with_server(rank, size, 0)
    expect_training_served(rank, size - 1, times_waited=(STEPS, STEPS))
    if rank > 0:
        return
    net = schemes.model(torch.float32)
    flat = flat_of(net.parameters())
    for step in range(STEPS):
        gradients = [gradient(net, flat.clone(), worker, step) for worker in range(size - 1)]
        for one in gradients:
            flat -= RATE * one
    assert torch.equal(found, flat), "other bits than those of synchronous descent"


def test_bounded_staleness_trains(rank, size):
    for staleness in (1, 3):
        found = train_with_server(rank, size, staleness)
        # The server finds one gradient or several when it wakes: that is a matter of time.
        expect_training_served(rank, size - 1, times_waited=(1, STEPS * (size - 1)))
        if rank > 0:
            continue

        def loss(flat):
            net = schemes.model(torch.float32)
            load(net, flat)
            losses = [
                schemes.loss_of(net, *schemes.batch(1000 * worker + step, ROWS, torch.float32))
                for worker in range(size - 1)
                for step in range(STEPS)
            ]
            return float(sum(losses))

        before = loss(flat_of(schemes.model(torch.float32).parameters()))
        assert loss(found) < before, (loss(found), before)


ranks.main(__name__)
