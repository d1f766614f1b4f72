from dataclasses import replace
from pathlib import Path

import pytest

from worldsize.launch.protocol.call_log import BROKEN, DONE, WAITING, Call
from worldsize.launch.protocol.failure import Failure, of_status
from worldsize.launch.reports import cures
from worldsize.launch.reports.diagnosis import (
    FAILED,
    RETURNED,
    RUNNING,
    StoppedRank,
    diagnose,
    mismatch,
    name_ranks,
    parting,
)
from worldsize.launch.reports.text import blame, describe_failure, describe_hang, held_up
from worldsize.source import Line

LINE = Line("/tmp/a.py", 3, "step", "f()")


def collective(sequence, state=DONE, op="all_reduce", shape=(4,), **kwargs):
    kwargs.setdefault("group", "1" if kwargs.get("ranks") else "")
    return Call(sequence, op, kwargs.pop("ranks", None), sequence, "float32", shape, state=state, **kwargs)


def waits(rank, *calls):
    return StoppedRank(rank, RUNNING, [LINE], list(calls))


def sentence(*standings):
    found = diagnose(standings)
    return found and found.sentence


def test_ranks_that_all_get_on_have_no_diagnosis():
    assert diagnose([waits(0, collective(1)), waits(1, collective(1))]) is None
    assert diagnose([]) is None


def test_the_rank_that_has_not_come_is_named_with_what_it_does():
    others = [waits(rank, collective(1), collective(2, WAITING)) for rank in (0, 1)]
    for state, does in [(RETURNED, "has returned"), (FAILED, "has failed"), (RUNNING, "is at a.py, line 3, in step")]:
        told = "Ranks 0 and 1 wait for rank 2 in collective 2, all_reduce (float32 [4]); rank 2 "
        assert sentence(*others, StoppedRank(2, state, [LINE], [collective(1)])) == f"{told}{does}."


def test_of_a_chain_of_waits_its_end_is_named():
    standings = [
        waits(0, Call(0, "recv", peer=1)),
        waits(1, Call(0, "recv", peer=2)),
        StoppedRank(2, RETURNED),
    ]
    assert sentence(*standings) == "Rank 1 waits for rank 2 in recv from rank 2; rank 2 has returned."
    assert diagnose(standings).culprits == [2]


def test_a_circle_is_told_step_by_step():
    standings = [waits(rank, Call(0, "recv", peer=(rank + 1) % 3)) for rank in range(3)]
    assert sentence(*standings) == (
        "Ranks 0, 1 and 2 wait for each other: rank 0 waits for rank 1 in recv from rank 1, "
        "rank 1 waits for rank 2 in recv from rank 2, rank 2 waits for rank 0 in recv from rank 0."
    )
    assert sentence(waits(0, Call(0, "send", peer=0))) == "Rank 0 waits for itself in send to rank 0."


def test_tensors_of_one_size_match_whatever_their_shapes():
    both = [waits(0, collective(1, shape=(2, 2)), collective(2, WAITING)), waits(1, collective(1))]
    assert mismatch(both) is None
    assert sentence(*both).startswith("Rank 0 waits for rank 1 in collective 2")


def test_a_circle_is_found_from_a_rank_outside_it():
    outside = waits(0, Call(0, "recv", peer=1))
    found = diagnose([outside, waits(1, Call(0, "send", peer=2)), waits(2, Call(0, "send", peer=1))])
    assert found.culprits == [1, 2]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"op": "broadcast", "peer": 0}, "broadcast (float32 [4], root 0)"),
        ({"shape": (5,)}, "all_reduce (float32 [5])"),
        ({"reduction": "MAX"}, "all_reduce (float32 [4], MAX)"),
    ],
)
def test_of_calls_that_do_not_match_the_minority_is_to_blame(change, told):
    odd = waits(1, collective(1), collective(2, **change))
    standings = [waits(0, collective(1), collective(2)), odd, waits(2, collective(1), collective(2))]
    found = diagnose(standings)
    assert found.culprits == [1]
    assert found.sentence == (
        f"Collectives do not match: Rank 1 calls collective 2, {told}, "
        "ranks 0 and 2 call collective 2, all_reduce (float32 [4])."
    )


def test_of_two_ranks_that_do_not_match_both_are_named_and_the_first_difference_counts():
    one = waits(0, collective(1, op="barrier"), collective(2))
    found = mismatch([one, waits(1, collective(1), collective(2, op="barrier"))])
    assert found.culprits == [0, 1] and "collective 1" in found.sentence and "collective 2" not in found.sentence


def test_shapes_may_differ_where_they_are_meant_to():
    calls = [collective(1, op="all_to_all_single", shape=(rank,)) for rank in range(2)]
    assert mismatch([waits(rank, call) for rank, call in enumerate(calls)]) is None


def test_groups_count_their_own_collectives():
    left, right = (collective(1, WAITING, ranks=group) for group in ((0, 1), (2, 3)))
    standings = [waits(0, left), waits(1), waits(2, right), waits(3, right)]
    assert diagnose(standings).culprits == [1]


def test_groups_of_the_same_ranks_are_told_apart():
    everyone = collective(1)
    root = collective(1, WAITING, op="broadcast", ranks=(0, 1), peer=0)
    standings = [waits(0, everyone, root), waits(1, everyone, Call(2, "recv", peer=0))]
    assert mismatch(standings) is None
    assert sentence(*standings).startswith("Ranks 0 and 1 wait for each other: rank 0 waits for rank 1 in collective 1")
    again = [waits(0, collective(1, WAITING, ranks=(0, 1), group=name)) for name in ("1", "2")]
    assert diagnose([again[0], StoppedRank(1, RUNNING, [LINE], again[1].calls)]).culprits == [0, 1]


def test_a_call_in_which_a_rank_takes_no_part_matches_none():
    assert mismatch([waits(0, collective(0, op="barrier")), waits(1, collective(0))]) is None


def test_a_collective_of_torch_s_own_waits_for_who_has_not_started_it():
    native = Call(0, "torch's own all_reduce", None, 5, state=WAITING)
    waiting = StoppedRank(0, native=native, num_native=5)
    assert diagnose([waiting, StoppedRank(1, num_native=4)]).culprits == [1]
    assert diagnose([waiting, StoppedRank(1, num_native=5)]) is None


def test_a_hang_is_told_with_every_rank_s_place_and_alike_ones_together():
    standings = [waits(rank, collective(1, WAITING)) for rank in (0, 2)]
    report = describe_hang([*standings, StoppedRank(1, RETURNED), StoppedRank(3)], "Too late.")
    assert report.splitlines() == [
        "Too late.",
        "Ranks 0 and 2 wait for rank 1 in collective 1, all_reduce (float32 [4]); rank 1 has returned. "
        "Ranks 0 and 2 wait for rank 3 in collective 1, all_reduce (float32 [4]); rank 3 is still working.",
        "Ranks 0 and 2 stopped in collective 1, all_reduce (float32 [4])",
        "  a.py, line 3, in step",
        "    f()",
        "Rank 3 stopped outside any call, and did not report where",
        f"{cures.SAME_STEPS}",
    ]
    odd = StoppedRank(1, RETURNED, [], [collective(1, op="barrier")])
    assert describe_hang([waits(0, collective(1, WAITING)), odd], "Too late.").splitlines()[1:3] == [
        "Collectives do not match: Rank 0 calls collective 1, all_reduce (float32 [4]), "
        "rank 1 calls collective 1, barrier (float32 [4]).",
        "Rank 1 had already returned.",
    ]
    assert describe_hang([], "Too late.") == "Too late.\nNone of them had started."


def at(line, sequence, state=DONE, **kwargs):
    return collective(sequence, state, line=Line("/tmp/a.py", line, "step", ""), **kwargs)


def test_calls_that_pair_up_by_luck_part_where_their_lines_do():
    ahead = [at(5, 1), at(5, 2), at(7, 3), at(5, 4, WAITING)]  # one call at line 7 more
    usual = [at(5, 1), at(5, 2), at(5, 3)]
    report = describe_hang([waits(0, *ahead), waits(1, *usual), waits(2, *usual, at(6, 4))], "Late.").splitlines()
    assert report[1].startswith("Rank 0 waits for rank 1 in collective 4")
    assert report[2] == (
        "The ranks' calls part at collective 3: Rank 0 at a.py, line 7, in step, "
        "ranks 1 and 2 at a.py, line 5, in step."
    )
    assert report[-1] == f"{cures.SAME_CALLS}"


def test_calls_that_agree_again_have_not_parted():
    root = [at(5, 1), at(7, 2), at(8, 3), at(9, 4, WAITING)]  # its part of a scatter is at line 7
    others = [at(5, 1), at(6, 2), at(8, 3)]
    assert parting([waits(0, *root), StoppedRank(1, RETURNED, [], others)]) == ""
    # of a log that begins later, nobody knows where its calls parted
    assert parting([waits(0, *root[1:2], at(3, 3)), waits(1, *others[1:2], at(4, 3))]) == ""


def test_a_parting_comes_before_the_mismatch_that_it_leads_to():
    more = [at(5, 1), at(7, 2, shape=(1,)), at(8, 3, WAITING, shape=(1,))]
    less = [at(5, 1), at(8, 2, shape=(1,)), at(8, 3, WAITING, shape=(9,))]
    report = describe_hang([waits(0, *more), waits(1, *less)], "Late.").splitlines()
    assert report[1].startswith("Collectives do not match: Rank 0 calls collective 3")
    assert report[2].startswith("The ranks' calls part at collective 2: ")


@pytest.mark.parametrize(
    ("standings", "cure"),
    [
        ([waits(0, at(1, 1, WAITING)), waits(1, at(1, 1, WAITING, shape=(5,)))], cures.SAME_SIZES),
        ([waits(0, at(1, 1, WAITING)), waits(1, at(2, 1, WAITING, shape=(5,)))], cures.SAME_CALLS),
        ([waits(0, at(1, 1, WAITING)), waits(1, at(1, 1, WAITING, op="barrier"))], cures.SAME_CALLS),
        ([waits(0, at(1, 1, WAITING)), StoppedRank(1, RETURNED)], cures.SAME_STEPS),
        ([waits(0, at(1, 1, WAITING)), waits(1)], cures.NOT_THERE),
        ([waits(0, at(1, 1, WAITING)), StoppedRank(1)], cures.EVERY_RANK),
        (
            [waits(0, Call(0, "recv", state=WAITING)), waits(1, Call(0, "recv", peer=0, state=WAITING))],
            cures.NO_MESSAGE,
        ),
        ([waits(0, Call(0, "send", peer=1)), waits(1, Call(0, "send", peer=0))], cures.SEND_FIRST),
    ],
)
def test_every_diagnosis_ends_with_what_to_do(standings, cure):
    assert describe_hang(standings, "Late.").splitlines()[-1] == str(cure)


def test_of_calls_with_other_sizes_from_other_lines_one_was_skipped():
    said = sentence(waits(0, at(1, 1, WAITING)), waits(1, at(2, 1, WAITING, shape=(5,))))
    assert said.endswith(
        "; one of them skipped a call or added one: rank 0 at a.py, line 1, in step, rank 1 at a.py, line 2, in step."
    )
    root, other, odd = at(1, 1, WAITING), at(2, 1, WAITING), at(2, 1, WAITING, shape=(5,))
    found = diagnose([waits(0, root), waits(1, other), waits(2, odd)])
    assert "skipped" not in found.sentence and found.cure is cures.SAME_SIZES


def test_a_mismatch_that_made_ranks_fail_says_what_to_do():
    standings = [waits(0, at(1, 1, WAITING)), StoppedRank(1, FAILED, [], [at(1, 1, BROKEN, shape=(5,))])]
    failures = blame([of_status(1, 6, 10)], standings)
    assert describe_failure(failures, standings, 2).splitlines()[-1] == str(cures.SAME_SIZES)


@pytest.mark.parametrize(
    ("message", "part"),
    [
        ("Expected to have finished reduction in the prior iteration", "find_unused_parameters=True"),
        ("invalid load key, '-'.", "the same collectives in the same order"),
        ("FSDP expects uniform original parameter dtype but got", "shard the module with another dtype by itself"),
        ("CUDA error: invalid device ordinal: there is no cuda:8", "LOCAL_RANK, not by RANK"),
    ],
)
def test_known_errors_end_with_what_to_do(message, part):
    failure = Failure(0, "RuntimeError", message, [], 1)
    report = describe_failure([failure], [StoppedRank(0, FAILED)], 1).splitlines()
    assert report[-1].startswith("What to do: ") and part in report[-1]


def test_sections_of_the_troubleshooting_page_exist():
    page = (Path(__file__).parents[3] / "docs/troubleshooting.md").read_text(encoding="utf-8")
    titles = {line[3:].lower().replace(" ", "-") for line in page.splitlines() if line.startswith("## ")}
    known = [one for one in vars(cures).values() if isinstance(one, cures.Cure)]
    assert {one.section for one in (*known, *cures._BY_TEXT.values())} <= titles


def test_who_held_up_the_rest_comes_first():
    standings = [
        waits(0, collective(1, WAITING)),
        StoppedRank(1, RETURNED),
        StoppedRank(2, RETURNED, [], [collective(1)]),
    ]
    assert [(one.rank, one.message) for one in held_up(standings)] == [
        (1, "has returned"),
        (0, "waits in collective 1, all_reduce (float32 [4])"),
    ]


def test_failures_of_several_kinds_are_told_by_the_clock():
    late = Failure(0, "ValueError", "b", [Line("/tmp/a.py", 3, "<lambda>", " f() ")], 20)
    early = Failure(2, "KeyError", "a", [Line("/tmp/ipykernel_1/5.py", 7, "step", "")], 10)
    standings = [StoppedRank(0, FAILED, [], [collective(3, BROKEN)]), StoppedRank(1), StoppedRank(2, FAILED)]
    assert describe_failure(blame([late, early], standings), standings, 3).splitlines() == [
        "Rank 2 of 3 failed with KeyError: a",
        "  the cell, line 7, in step",
        "Rank 0 failed too, with ValueError: b",
        "Rank 0, last call: collective 3, all_reduce (float32 [4]), broken off",
    ]


def test_a_mismatch_is_blamed_for_what_torch_does_about_it_and_for_nothing_else():
    standings = [
        waits(0, collective(1, line=LINE)),
        waits(1, collective(1)),
        waits(2, collective(1, shape=(7,), line=LINE)),
    ]
    aborted = of_status(0, 6, 10)
    (first, second) = blame([aborted], standings)
    assert (first.rank, first.kind, first.lines, second) == (2, "a mismatched collective", [LINE], aborted)
    for own in (Failure(1, "KeyError", "a", [], 30), Failure(2, "OSError", "write error: Gloo's disk", [LINE], 30)):
        assert blame([aborted, own], standings) == [aborted, own]


def test_ranks_are_named_in_words():
    assert name_ranks([1]) == "Rank 1"
    assert name_ranks([0, 2, 3]) == "Ranks 0, 2 and 3"
    assert name_ranks([*range(137), *range(138, 512)]) == "Ranks 0 to 136 and 138 to 511"


def test_an_unknown_signal_is_told_by_its_number():
    assert of_status(0, 40, 0).headline == "signal 40: the process was ended by this signal"


@pytest.mark.parametrize("op", ["all_gather_into_tensor", "all_gather_single", "reduce_scatter_tensor"])
def test_tensors_of_different_sizes_are_told_also_of_collectives_into_one_tensor(op):
    found = mismatch([waits(rank, collective(1, WAITING, op, (4 + rank,))) for rank in range(2)])
    assert found and f"{op} (float32 [5])" in found.sentence


def test_a_call_that_the_main_thread_is_not_in_is_told_with_its_own_line():
    call = collective(1, WAITING, line=Line("/tmp/a.py", 9, "in_thread", "dist.all_reduce(x)"))
    report = describe_hang([waits(0, call)], "Too late.").splitlines()
    assert report[-6:] == [
        "Rank 0 stopped in collective 1, all_reduce (float32 [4])",
        "  a.py, line 3, in step",
        "    f()",
        "That call was made at",
        "  a.py, line 9, in in_thread",
        "    dist.all_reduce(x)",
    ]
    assert "That call" not in describe_hang([waits(0, collective(1, WAITING, line=LINE))], "Too late.")


def test_ranks_of_a_ring_that_stand_alike_are_told_together():
    standings = [
        replace(waits(rank, Call(0, "send", peer=(rank + 1) % 8, line=LINE)), lines=[LINE]) for rank in range(8)
    ]
    report = describe_hang(standings, "Deadlock.").splitlines()
    assert report[1] == (
        "Ranks 0 to 7 wait for each other: rank 0 waits for rank 1 in send to rank 1, rank 1 waits for rank 2 in send "
        "to rank 2, rank 2 waits for rank 3 in send to rank 3, and so on round to rank 0."
    )
    assert report[2] == "Ranks 0 to 7 stopped in send to the next rank" and len(report) == 6
    other = replace(standings[3], calls=[Call(0, "send", peer=6, line=LINE, state=WAITING)])
    report = describe_hang([*standings[:3], other, *standings[4:]], "Deadlock.")
    assert report.count("stopped in send to rank") == 7  # ranks 3 and 5 alike
