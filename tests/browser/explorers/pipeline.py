"""How large is a pipeline's bubble, and what does it hold? The schedules are the reader's own."""

from worldsize.explore import explore
from worldsize.timeline import Event, Timeline

FORWARD_S, BACKWARD_S = 1e-3, 2e-3


def gpipe(stage, num_stages, num_pieces):
    return [("forward", piece) for piece in range(num_pieces)] + [("backward", piece) for piece in range(num_pieces)]


def one_forward_one_backward(stage, num_stages, num_pieces):
    num_warm = min(num_stages - stage, num_pieces)
    actions = [("forward", piece) for piece in range(num_warm)]
    for piece in range(num_pieces):
        actions.append(("backward", piece))
        if piece + num_warm < num_pieces:
            actions.append(("forward", piece + num_warm))
    return actions


def play(schedule, num_stages, num_pieces):
    """The timeline, in which a forward and a backward wait for the neighbour's."""
    left = [schedule(stage, num_stages, num_pieces)[::-1] for stage in range(num_stages)]
    end_s = {("forward", -1, piece): 0.0 for piece in range(num_pieces)}
    free_s, events = [0.0] * num_stages, []
    while any(left):
        num_before = len(events)
        for stage, actions in enumerate(left):
            while actions:
                kind, piece = actions[-1]
                is_last = kind == "backward" and stage == num_stages - 1
                before = (
                    ("forward", stage, piece) if is_last else (kind, stage + (1 if kind == "backward" else -1), piece)
                )
                if before not in end_s:
                    break
                actions.pop()
                start_s = max(free_s[stage], end_s[before])
                free_s[stage] = end_s[kind, stage, piece] = start_s + (FORWARD_S if kind == "forward" else BACKWARD_S)
                events.append(Event(stage, "main", kind, str(piece + 1), start_s, free_s[stage]))
        if len(events) == num_before:
            raise ValueError("This schedule never ends: every stage waits for another one.")
    return Timeline.of_events(events)


def peak_activations(schedule, num_stages, num_pieces):
    held = peak = 0
    for kind, _ in schedule(0, num_stages, num_pieces):
        held += 1 if kind == "forward" else -1
        peak = max(peak, held)
    return peak


def pipeline(schedule=one_forward_one_backward, num_stages=4, num_pieces=8):
    run = play(schedule, num_stages, num_pieces)
    peak = peak_activations(schedule, num_stages, num_pieces)
    bubble = 1 - num_pieces * (FORWARD_S + BACKWARD_S) / run.end_s  # every stage works on every piece once
    return {"bubble_fraction": bubble, "peak activations of stage 0": peak, "timeline": run}


explore(
    pipeline,
    schedule={"GPipe": gpipe, "1F1B": one_forward_one_backward},
    num_stages=(1, 32),
    num_pieces=(1, 64),
)
