"""The claims of docs/claims.md still stand in their texts, and the sums of these texts come out when done again."""

import math
import re
from functools import cache
from pathlib import Path

import pytest
from repository import ROOT

from autograder.authoring.scripts import Cell, parse, read_week

PAGE = ROOT / "docs" / "claims.md"
KINDS = {"computed", "derived", "emulated", "measured", "sourced"}


def harmonic(count):
    return sum(1 / number for number in range(1, count + 1))


def stable(delay):
    """The largest stable learning rate times curvature, by gradients so many updates late."""
    return 2 * math.sin(math.pi / (2 * (2 * delay + 1)))


def times_sent(num_ranks):
    """How often each byte leaves a rank in an all-reduce that sends the fewest."""
    return 2 * (num_ranks - 1) / num_ranks


def idle(num_stages, num_batches):
    """The share of a pipeline's time in which a stage waits."""
    return 1 - num_batches / (num_batches + num_stages - 1)


def young(stall_s, start_s, mean_s):
    """Young's interval, the shares of time for saving and for failures, and both."""
    saving = (stall_s / 2 / mean_s) ** 0.5  # as much as doing half an interval again
    return stall_s / saving, saving, saving + start_s / mean_s, 2 * saving + start_s / mean_s


DAY_S = 86_400
STOPS = 512 * 30 / (365 * 5.8)  # of 512 GPUs in 30 days
A_PART_S, A_THOUSANDTH_S = 126 * 14e-6, times_sent(64) * 64e3 / 48e9  # latency and bytes of 64 kB on a ring of 64
IN_NODE_S, BETWEEN_S = times_sent(8) * 16.1 / 371, times_sent(16) * 16.1 / 8 / 48
FLOPS_A_BYTE = 10_688  # an A100 on PCIe 4 in bfloat16, by the table of week 3
TALK_S = (2.00 - 0.91) / (1 - 1 / 4)  # an all-reduce, from t + c = 2.00 and t + c/4 = 0.91
WORK_MS, WIRE_MS = 6 * 0.3e9 * 4096 / 256e12 * 1e3, times_sent(16) * 0.6 / 1.17 * 1e3
NODE_MS, WHOLE_S = 1.6e3 / 8 + times_sent(8) * 1.4 / 24 * 1e3, 1.6 + times_sent(8) * 1.4 / 24
RING_512_MS = 2 * 511 * 15e-3, times_sent(512) * 2 / 50 * 1e3
LAYER_GB, HEAD_GB = (16 - 3 / 4 * 4 + 8 * 3.5) * 2**25 / 1e9, 3 * 128_256 * 2**15 / 1e9  # Llama 3 8B, 8,192 tokens
SEQUENCE_GB = 32 * LAYER_GB + HEAD_GB
TOKENS_M = 2_048 * 12_288 / 1e6  # numbers in the activations of a sequence of GPT-3
TRILLION_FLOPS = 96 * 2_048 * 128 * 25_600 * (25_600 + 2_048 / 6 + 51_200 / 16 / 128)  # of a GPU in a step, B = GPUs
SMALL_US, LARGE_US = 2**17 / 13.1e3, 2**20 / 87.6e3  # a piece of 128 KiB, and one of 1 MiB
POWER_DOLLARS = 10.2 * 1.2 * 365 * 24 * 0.0806
YEAR_DOLLARS = 310_000 * (1 / 4 + 1 / 10) + POWER_DOLLARS
# a lesson or lab, its words with a gap for each number, and the numbers, worked out by another way than there
SUMS = [
    ("week01", "On 1,024 A100s it would be {:.0f} days", 8 * 175e9 * 300e9 / (1024 * 140e12) / DAY_S),
    ("week01", "Llama 3 405B saw {:.0f} for each parameter", 15.6e12 / 405e9),
    ("week01", r"10^9 \cdot 260 \cdot 10^9 = {:.2f} \cdot 10^{{22}}$ operations", 6 * 13e9 * 260e9 / 1e22),
    ("week01", r"= {:.2f} \cdot 10^{{16}}$ a second", 128 * 312e12 * 0.45 / 1e16),
    ("week01", "s, {:.0f} days. </details>", 6 * 13e9 * 260e9 / (128 * 312e12 * 0.45) / DAY_S),
    ("week01", "$s = 2/1.6 - 1 = {:.2f}$. Eight: $1/(0.25 + 0.75/8) = {:.1f}$", 2 / 1.6 - 1, 8 / (8 * 0.25 + 0.75)),
    ("week01", r"eight ranks do $0.25 + 0.75 \cdot 8 = {:.2f}$ times the work", 8 - 7 * 0.25),
    ("week01", "90/120 = {:.0%}. The network: 90 + 15 = 105 ms, {:.2f} times as fast", 3 / 4, 120 / 105),
    ("week01", "ms, {:.1f} times as fast, at {:.0%}. Faster GPUs", 120 / 75, 45 / 75),
    ("week01", r"$512 \cdot 30 / 365 / 5.8 = {:.1f}$", STOPS),
    ("week01", "{:.1f} hours of 720 in all, {:.1%}.", STOPS * 40 / 60, STOPS * 40 / 60 / 720),
    ("week01", "{:.0f} interruptions and lose {:.0f} hours, over a fifth", STOPS * 32, STOPS * 32 * 40 / 60),
    ("week02", "in its latency it could move {:.2f} MB", 3.4e-6 * 370.8e9 / 1e6),
    ("week02", "= {:.0f} MB. For nine parts", 64 * 14e-6 * 48e9 / 1e6),
    ("week02", "it takes nine times that, {:.0f} MB", 9 * 64 * 14e-6 * 48e9 / 1e6),
    ("week02", "µs = {:,.0f} µs of latency", A_PART_S * 1e6),
    (
        "week02",
        "GB/s = {:.1f} µs of bytes. A thousand: {:.2f} s",
        A_THOUSANDTH_S * 1e6,
        1e3 * (A_PART_S + A_THOUSANDTH_S),
    ),
    ("week02", "{:.2f} + 2.63 = {:.1f} ms, 400 times", A_PART_S * 1e3, A_PART_S * 1e3 + A_THOUSANDTH_S * 1e6),
    ("week02", "473 / 1.75 = {:.0f} GB/s, and hardly more", 473 / times_sent(8)),
    ("week02", "in each direction: {:.0%} of 450", 473 / times_sent(8) / 450),
    ("week02", "to the other half: $N S / 4$ = {:.2f} GB", 32 * 32e6 / 1e9),
    ("week02", r"$2 (N-1)/N \cdot S$ = {:.0f} MB. An all-to-all needs eight times", times_sent(64) * 64),
    ("week02", r"16.1 / 371$ = {:.0f} ms", IN_NODE_S * 1e3),
    ("week02", r"2.01 / 48$ = {:.0f} ms. In all {:.0f} ms", BETWEEN_S * 1e3, (IN_NODE_S + BETWEEN_S) * 1e3),
    ("week02", r"Flat: $2 \cdot 127/128 \cdot 16.1 / 48$ = {:.0f} ms", times_sent(128) * 16.1 / 48 * 1e3),
    ("week02", r"the uplinks of a rack carry $8 \cdot 8 / 4 = {:.0f}$ cards", 32 * 8 / 4 / 4),
    ("week02", "a smaller message is latency: {:.2f} MB with 14 µs", 14e-6 * 48e9 / 1e6),
    ("week02", "| {:.2f} s | bfloat16 gradients of 8B parameters", A_PART_S + times_sent(64) * 2 * 8.03 / 48),
    ("week03", "the step approaches $F + 8$ ms, {:.1f} ms", 10 / 3 + 8),
    ("week03", "12 + 4 + 30 = {:.0f} ms", 12 + 24 / 6 + 6 * 5),
    ("week03", "36/46 = {:.0%}. Without overlap it would be 36/66 = {:.0%}", 1 - 10 / 46, 1 - 30 / 66),
    ("week03", "12 + 30 = 42 ms at best, {:.0%}", 1 - 6 / 42),
    ("week03", "36 + 2.5 = 38.5 ms, {:.0%}", 1 - 2.5 / 38.5),
    ("week03", "give c = {:.2f} s and t = {:.2f} s", TALK_S, 2 - TALK_S),
    ("week03", "an efficiency of {:.0%}, and of {:.0%} with four", 1 - TALK_S / 2, (2 - TALK_S) / 0.91),
    ("week03", "0.55 + 1.45/8 = {:.2f} s", 2 - TALK_S * 7 / 8),
    (
        "week03",
        "is {:,} rows, times (N - 1)/N = 7/8: {:,} tokens",
        *(int(round(FLOPS_A_BYTE * one, -1)) for one in (1.001, 7 / 8)),
    ),
    ("week03", "4,096 / 256e12 = {:.0f} ms", WORK_MS),
    ("week03", "1.17 GB/s = {:.0f} ms", round(WIRE_MS, -1)),
    ("week03", "to {:.0f} + 29, {:.1f} times as fast", WIRE_MS / 2.5, (WIRE_MS + WORK_MS) / (WIRE_MS / 2.5 + WORK_MS)),
    ("week03", "still compute is only {:.0%} of it", WORK_MS / (WIRE_MS / 2.5 + WORK_MS)),
    ("week03", "for each 960 ms of communication, {:.0%}", 32 * WORK_MS / (32 * WORK_MS + WIRE_MS)),
    ("week04", r"H_N \approx \ln N + {:.2f}$$", harmonic(10_000) - math.log(10_000)),
    ("week04", "from {:.2f} to {:.2f}, by", harmonic(60), harmonic(64) - harmonic(4)),
    ("week04", "by {:.0%}, and the last column", 1 - (harmonic(64) - harmonic(4)) / harmonic(60)),
    ("week04", "Synchronous: 100/150 = {:.0%}. Server: (15 + 100/150)/16 = {:.0%}", 2 / 3, 47 / 48),
    ("week04", "$H_{{32}} = {:.2f}$ and $H_{{256}} = {:.2f}$", harmonic(32), harmonic(256)),
    ("week04", "612 ms, {:.0%} longer", harmonic(256) / harmonic(32) - 1),
    ("week04", "bring 8/1.51 = {:.1f} times the gradients", 8 * harmonic(32) / harmonic(256)),
    ("week04", "$t_0 / t_3 = {:.2f}$. The step is {:.0%} shorter", 1.095 * 53 / 50, 1 - 50 / 53 / 1.095),
    ("week04", r"$2 \sin(\pi / 42) = {:.3f}$, so η < 0.149/50 = {:.4f}", stable(10), stable(10) / 50),
    ("week04", "η < 2/50 = 0.04, {:.0f} times as much", 2 / stable(10)),
    ("week04", "1,281,167/8,192 = {:.1f} steps, so {:.0f} steps", 1_281_167 / 8192, 5 * 1_281_167 / 8192),
    ("week04", "an hour a day, the loss is {:.0%}", 0.5 / 24),
    ("week05", r"$23 \cdot 0.005 \cdot 6 = {:.2f}$ bytes an entry", 23 * 6 / 200),
    (
        "week05",
        r"$2 \cdot 23/24 \cdot 2 = {:.2f}$, {:.1f} times as many",
        times_sent(24) * 2,
        times_sent(24) * 2 / 0.69,
    ),
    ("week05", r"$199 \cdot 0.03 = {:.2f}$ against {:.2f} bytes", 199 * 6 / 200, times_sent(200) * 2),
    ("week05", "with $f = 0.03/2$: {:.0f}", 4 / (6 / 200)),
    ("week05", r"14336) = {:.1f}\%$", 100 * 32 * (1 / 4096 + 1 / 14_336)),
    ("week05", "from rank {:,.0f} on", math.ceil(1 / (1 / 4096 + 1 / 14_336))),
    ("week05", r"0.5/5 = {:.0f}$ ms, of which {:.0f}", times_sent(16) * 100, times_sent(16) * 100 - 130),
    ("week05", "$0.9375 / 0.170 = {:.1f}$ GB/s", times_sent(16) * 0.5 / (0.130 + 0.040)),
    ("week05", "$N = 4/1.06 = {:.1f}$ and $4/1.03 = {:.1f}$", 4 / (1 + 4 / 64), 4 / (1 + 2 / 64)),
    ("week05", "each way: {:.1f} s at the full 12.5 GB/s", 2 * 8.03 / 12.5),
    ("week05", "can draw from the same data: {:.0f} ms a step", 2 * 8.03 / 12.5 / 100 * 1e3),
    ("week06", "from {:.0f} to {:.0f} (Micikevicius", (2 - 2**-3) * 2**7, (2 - 2**-2) * 2**8),
    ("week06", "on, {:.0f} tokens with heads of 128", 34 / 5 * 128),
    ("week06", "12288 = {:.0f}$. Of 34 + 80 = {:.0f} the core is 80, {:.0%}", 5 * 96 / 6, 34 + 5 * 16, 80 / 114),
    (
        "week06",
        "= {:.2f} GB a layer, {:.0f} GB for 32, and {:.1f} GB for the LM head's",
        LAYER_GB,
        32 * LAYER_GB,
        HEAD_GB,
    ),
    ("week06", "16 + 44 + 13 = {:.0f} GB: one fits. Two need {:.0f} GB", *(16 + n * SEQUENCE_GB for n in (1, 2))),
    ("week06", "MFU = 52% · 3/4 = {:.0%}", 0.52 / (1 + 1 / 3)),
    (
        "week06",
        "≤ 20 gives r ≥ {:.1f}, so 13: 0.975 + 16.5 + 1.5 = {:.1f} GB",
        (25 * 1.5 - 20) / 1.425,
        12 * 1.5 + 0.975,
    ),
    ("week06", "1 + 13/24 · 1/3 = {:.2f} s", (24 * 3 + 13) / (24 * 3)),
    (
        "week07",
        "16 × 6.74 = {:.1f} GB. Stage 1 needs (4 + 12/8) × 6.74 = {:.1f} GB and leaves {:.1f}.",
        16 * 6.74,
        6.74 * 11 / 2,
        40 - 6.74 * 11 / 2,
    ),
    ("week07", "(2 + 14/8) × 6.74 = {:.1f} GB and leaves {:.1f}", 6.74 * 30 / 8, 40 - 6.74 * 30 / 8),
    ("week07", "6,730 / 3,906 = {:.1f} times its compute", 794e3 / 118 / 4e6 * 1024),
    ("week07", "224 GB / 3.35 TB/s = {:.1f} ms with DDP, {:.1f} ms sharded", 28 * 8 / 3.35, 28 / 3.35),
    ("week07", "16 × 70.6 = {:,.0f} GB. Within one node that is {:.0f} GB a GPU", 16 * 70.6, 2 * 70.6),
    ("week07", "40 GB a GPU takes {:.1f} GPUs, so **32**, four nodes: {:.1f} GB", 0.4 * 70.6, 70.6 / 2),
    ("week07", "2 × 15/16 × 4.4 = {:.1f} GB", times_sent(16) * 70.6 / 16),
    ("week08", "= {:.0f} million elements, **{:.0f} MB**", 4 * times_sent(8) * TOKENS_M, 8 * times_sent(8) * TOKENS_M),
    ("week08", "2,048 × 12,288 elements, {:.0f} MB, between", 2 * TOKENS_M),
    ("week08", "takes 35 + 106/4 = {:.0f} GB", 70.6 / 8 * (2 + 2 + 12 / 4)),
    ("week08", "3 × 8192 / 1790 = **{:.1f}** ranks", 1 + 12 * 8192**2 / (4 * 8192) / 1790),
    (
        "week08",
        "= {:.1f} million weights a layer, of 856 million. Replicating them costs **{:.0%}**",
        2**24 / 1e6,
        2**24 / 856e6,
    ),
    ("week08", "so {:.1f} GB for 16 times as many, and 32 layers take **{:.0f} GB**", 16 * 0.176, 16 * 32 * 0.176),
    ("week09", "7/31 = {:.1%} idle, 8 × 24/31 = {:.2f} times", idle(8, 24), 8 * (1 - idle(8, 24))),
    ("week09", "7/63 = {:.1%}, 8 × 56/63 = {:.2f} times", idle(8, 56), 8 * (1 - idle(8, 56))),
    (
        "week09",
        "12.5 × 19 = {:.1f}. Loads 12, 12, 12, 14 take 50 + 15 × 14 = {:.0f}, **{:.1%}**",
        50 / 4 * 19,
        3 * 12 + 16 * 14,
        260 / 237.5 - 1,
    ),
    ("week09", "50 + 15 × 13 = {:.0f}, **{:.1%}**", 3 * 13 + 11 + 15 * 13, 245 / 237.5 - 1),
    ("week09", "15/(32v + 15): {:.1f}, {:.1f}, {:.1f} and {:.1f}%", *(100 * idle(16, 32 * v) for v in (1, 2, 4, 8))),
    ("week09", "127/15 = **{:.1f} times**", (16 * 8 - 1) / (16 - 1)),
    (
        "week09",
        "tokens has {:.2f} billion parameters, and a layer has {:.2f} billion",
        250_880 * 14.336e-6,
        12 * 14.336**2 / 1e3,
    ),
    ("week10", "from 7/39 = **{:.1%}** to 7/23 = **{:.1%}**", idle(8, 32), idle(8, 16)),
    ("week10", "**{:.2f}** times as fast on twice the GPUs", 2 * (1 - idle(8, 16)) / (1 - idle(8, 32))),
    ("week10", "18 · 39.1 = {:.0f} GB, or {:.1f} GPUs", 18 * 39.1, 18 * 39.1 / 80),
    ("week10", "18 · 76.1 = {:,.0f} GB, {:.1f} GPUs", 18 * 76.1, 18 * 76.1 / 80),
    ("week10", "163e12 that is **{:.1f} s**. 163/312 = {:.0%}", TRILLION_FLOPS / 163e12, 163 / 312),
    ("week10", "MFU is 3/4 of it, **{:.0%}**", 163 / 416),
    ("week11", "At 2.04 TB/s that is {:.2f} TFLOP/s, **{:.2%}** of the peak", 2.04 / 6, 2.04 / 6 / 312),
    ("week11", "80 calls take **{:.1f} ms**, and 300 calls **{:.0f} ms**", 2e3 / 25 * 0.04, 300 * 0.04),
    ("week11", "3.75 GB / 384 GB/s = **{:.1f} ms**", times_sent(16) * 2e3 / 8 / 48),
    ("week11", "2.95 = **{:.2f} million** dollars", 1.024 * 0.72 * 2.95),
    ("week11", "38/41 of the time: **{:.2f} million**", 1.024 * 0.72 * 2.95 * (1 - 3 / 41)),
    ("week11", "almost the same time: {:.0f} instead of {:.0f} µs", LARGE_US, SMALL_US),
    ("week11", "The line through both points begins at {:.1f} µs", SMALL_US - (LARGE_US - SMALL_US) / 7),
    ("week12", "6.5 per 1,000 days, predicts {:.1f} (Kokolis", 24e3 / 6.5 / 128),
    ("week12", "40/10,540 = **{:.2%}**", 0.4 / 105.4),
    ("week12", "604,800) = {:,.0f} s = **{:.0f} steps**", (80 * 7 * DAY_S) ** 0.5, (80 * 7 * DAY_S) ** 0.5 / 105),
    ("week12", "148 + 72 + 19 + 17 + 6 + 6 = {:.0f}, which is {:.1%}", sum((148, 72, 19, 17, 6, 6)), 268 / 419),
    ("week12", "it would be 246, **{:.1%}**, and 126/419 = {:.1%}", (268 - 22) / 419, (148 - 22) / 419),
    (
        "week12",
        "10,800) = {:.0f} s. Lost: 20/657 + (480 + 329)/10,800 = {:.1%} + {:.1%} = **{:.1%}**",
        *young(20, 480, 10_800),
    ),
    (
        "week12",
        "2,700) = {:.0f} s. Lost: 20/329 + (480 + 164)/2,700 = {:.1%} + {:.1%} = **{:.1%}**",
        *young(20, 480, 2_700),
    ),
    ("week12", "a goodput of {:.0%}. (It had", 33 / 56 * 1024 / 992),
    (
        "week12",
        "14 · 70e9 = {:.0f} GB: all ranks together need {:.0f} s to write it, and a rank needs {:.1f} ms",
        14 * 70,
        98 / 5,
        19.6e3 / 4096,
    ),
    ("week13", "7/97 = **{:.1%}** against 0.5/90.5 = {:.1%}", 1 - 90 / 97, 1 / 181),
    ("week13", "200 · 6.5 s = {:,.0f} s, **{:.0f} minutes**", 200 * (7 - 0.5), 200 * (7 - 0.5) / 60),
    ("week13", "240/30 = **{:.0f} MB**", 240 / 60 * 2),
    ("week13", "48 of 64 train, {:.0%}", 1 - 16 / 64),
    ("week13", "of 64 · 130 GPU-minutes train, **{:.0%}**", 3 / 4 * 120 / 130),
    ("week13", "= **{:,.0f}** samples a second. Times 604,800 s", 4096 * 5 / 3),
    ("week13", "times 1.5 bytes: **{:.1f} GB**", 4096 * 5 / 3 * 7 * DAY_S * 1.5e-9),
    ("week14", "3 · 60 GB / 2 = {:.0f} GB, and an all-reduce", 3 * 60 * (1 - 1 / 2)),
    ("week14", "2 · 30 · 15/16 = {:.0f} GB: **{:.0f} GB**", times_sent(16) * 30, 90 + times_sent(16) * 30),
    ("week14", "3 · 60 · 31/32 = **{:.0f} GB**", 180 - 180 / 32),
    ("week14", "0.952^100 = **{:.1%}**", 1.05**-100),
    ("week14", "163/312 = {:.0%}, and three quarters of that are **{:.0%}**", 163 / 312, 163 / 416),
    (
        "week14",
        "that is {:.1f} full stages for two chunks, {:.2f} for four and {:.1f} for six",
        *(9 / v + 10 for v in (2, 4, 6)),
    ),
    ("week14", "0.0806 = {:,}, in all {:,} dollars", *(int(round(one, -1)) for one in (POWER_DOLLARS, YEAR_DOLLARS))),
    ("week14", "that is {:.2f} dollars. 1.67/2.95 = **{:.0%}**", YEAR_DOLLARS / 70_080, YEAR_DOLLARS / 70_080 / 2.95),
    ("week14", "24.7 + 14.6 + 11.2 = {:.1f} t; 50.5/24.7 = **{:.1f}**", 24.7 + 25.8, 1 + 25.8 / 24.7),
    ("week14", "46/(1 - 0.26) = {:.0f} days", 46 / 0.74),
    ("week15", "of 16 GB on one rank, {:.0f} GB must be sent to it", (4 - 1) * 16),
    ("week15", "Eight projections and a norm are {:.0f} bytes in float64", (8 + 1) * 64 / 8),
    ("week15", r"$\sqrt{{16/4}}$ = **{:.0f}**", (1 / 4) ** 0.5 / (1 / 16) ** 0.5),
    ("week15", r"$\bar n$ = {:,.0f}, so 1,000/500 = **{:.0f}**", sum((500, 1000, 1500)) / 3, 1000 / 500),
    ("lab01", "Not {:.1f}, which is the sum, and not {:.1f}, which counts", 3 + 7, (3 + 7) / 2),
    ("lab01", "afterwards {0:.1f} {0:.1f}", (3 * 3 + 1 * 7) / 4),
    ("lab01", "24 GB/s = {:.0f} ms", NODE_MS - 200),
    ("lab01", "a step takes {:.0f} ms. That is 1.6 / 0.302 = {:.1f} times", NODE_MS, 1.6e3 / NODE_MS),
    (
        "lab01",
        "8 · 1.6 / 1.70 = {:.1f} times as many per second, with an efficiency of {:.0%}",
        12.8 / WHOLE_S,
        1.6 / WHOLE_S,
    ),
    ("lab02", "1022 · 15 µs = {:.1f} ms of latency", RING_512_MS[0]),
    ("lab02", "2 GB / 50 GB/s = {:.1f} ms of bytes: {:.0f} ms", RING_512_MS[1], sum(RING_512_MS)),
    ("lab02", "512 · 2 GB = 1,024 GB, {:.1f} s", 512 * 2 / 50),
    ("lab02", "18 · 15 µs = {:.2f} ms", 2 * math.log2(512) * 0.015),
    ("lab02", "log2(N) = 9 exchanges, {:.2f} ms", math.log2(512) * 0.015 + 1e-9),
    ("lab03", "25 + 8 · 5.2 = {:.1f} ms", 20 + 40 / 8 + 8 * (0.2 + 100 / 20)),
    ("lab03", "at n = sqrt(40/0.2) = {:.0f}, with {:.1f} ms", 200**0.5, 60 + 2 * (40 * 0.2) ** 0.5),
    ("lab03", "3 · 60 + 66.6 = {:.1f} ms for 240 ms of compute: {:.1%}", 246.6, 240 / 246.6),
    ("lab04", r"2 + 0.2 \cdot 5) = {:.1f}$", 0.06 * 5 / 3),
    ("lab04", r"$5 / \sqrt{{1.75^2 + 2^2}} = {:.3f}$", 5 / math.hypot(1.75, 2)),
    ("lab04", "2 sin(π / 122) = {:.4f} instead of 2: a factor of {:.0f}", stable(30), 2 / stable(30)),
    ("lab05", "sends 2(N - 1)/N · S = {:.2f} GB", times_sent(32)),
    (
        "lab05",
        "0.2 + 1.94 = {:.2f} s; top-k 0.2 + 0.05 + {:.2f} = {:.2f} s",
        0.2 + times_sent(32),
        31 * 0.02,
        0.25 + 31 * 0.02,
    ),
    ("lab05", "511 · 20 MB = {:.1f} GB, a step of {:.1f} s", 511 * 0.02, 511 * 0.02 + 0.25),
]


@cache
def cells_of(name: str) -> list[Cell]:
    """The cells of week `week03`, or of lab `lab03` or project `project1`."""
    if name.startswith("week"):
        return read_week(next((ROOT / "weeks").glob(f"{name}_*.py"))).cells
    folder = ROOT / "solutions" / name
    script = folder / ("report.py" if name.startswith("project") else f"{name}.py")
    return parse(script).cells


@cache
def text_of(name: str, section: str = "") -> str:
    """The prose of a lesson or lab on one line, or that of one numbered section."""
    prose, number = [], ""
    for cell in cells_of(name):
        if cell.kind == "markdown":
            for part in re.split(r"(?m)^(?=## )", cell.source):
                heading = re.match(r"## (\d+)\.", part)
                number = heading[1] if heading else "" if part.startswith("## ") else number
                prose += [part] if section in ("", number) else []
    return " ".join(" ".join(prose).split())


@cache
def names_of_tests() -> set[str]:
    """The names of all tests."""
    files = (path.read_text(encoding="utf-8") for path in Path(ROOT / "tests").rglob("test_*.py"))
    return {name for text in files for name in re.findall(r"^def (test_\w+)", text, flags=re.MULTILINE)}


def claims(page: str) -> list[tuple[str, str, str, str, str]]:
    """Of each row of the page: the week or lab, its section, the claim, the kind of check and the check."""
    found, name = [], ""
    for line in page.splitlines():
        if heading := re.match(r"## (Week|Lab|Project) (\d+)", line):
            number = int(heading[2])
            name = f"project{number}" if heading[1] == "Project" else f"{heading[1].lower()}{number:02}"
        elif (cells := [cell.strip() for cell in line.strip("|").split(" | ")]) and len(cells) == 4 and name:
            claim, section, kind, how = cells
            if section.isdigit():
                found.append((name, section, claim, kind, how))
    return found


def faults(page: str) -> list[str]:
    """What is wrong with the rows of a page of claims."""
    found = []
    for name, section, claim, kind, how in claims(page):
        cells, named = {cell.id for cell in cells_of(name)}, re.findall(r"`(\w+)`", how)
        found += [f"{name}: not in section {section}: {claim}"] * (claim not in text_of(name, section))
        found += [f"{name}: no kind of check: {kind}"] * (kind not in KINDS)
        found += [f"{name}: neither a cell nor a test: {one}" for one in named if one not in cells | names_of_tests()]
        has_test = any(one.startswith("test_") for one in named)
        found += [f"{name}: no test for: {claim}"] * (kind != "sourced" and not has_test)
        found += [f"{name}: no source for: {claim}"] * (kind == "sourced" and len(how) < 15)
    return found


def test_every_claim_still_stands_and_has_its_check():
    page = PAGE.read_text(encoding="utf-8")
    assert faults(page) == []
    assert len(claims(page)) >= 240


def test_a_stale_row_is_found():
    page = "## Week 1\n\n| Claim | Section | Kind | Check |\n|---|---|---|---|\n"
    row = "| One GPU is too quick | 3 | computed | `no_such_cell`, `test_of_nothing` |"
    assert faults(page + row) == [
        "week01: not in section 3: One GPU is too quick",
        "week01: neither a cell nor a test: no_such_cell",
        "week01: neither a cell nor a test: test_of_nothing",
    ]


@pytest.mark.parametrize(("name", "words", "numbers"), [(name, words, numbers) for name, words, *numbers in SUMS])
def test_sums_in_the_text_come_out(name, words, numbers):
    assert words.format(*numbers) in text_of(name)


def test_dividing_by_the_staleness_helps_below_half_the_bound():
    shares = [delay * stable(delay) / 2 for delay in range(1, 1_000)]
    assert (
        shares[0] == pytest.approx(0.5) and shares == sorted(shares) and shares[-1] == pytest.approx(math.pi / 4, 1e-3)
    )
    assert all(1 / delay <= stable(delay) + 1e-12 for delay in range(1, 1_000))  # the fresh bound over twice the delay


def test_columns_that_ranks_make_orthonormal_apart_are_not_so_when_added():
    ours, theirs = (1.0, 0.0), (0.6, 0.8)
    assert math.hypot(*theirs) == 1 and math.hypot(*map(sum, zip(ours, theirs, strict=True))) / 2 < 0.9
