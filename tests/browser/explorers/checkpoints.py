"""How often should a run save? The waste is the reader's own formula."""

from worldsize import draw, units
from worldsize.explore import explore

intervals_s = [60 * 1.2**place for place in range(40)]


def waste_fraction(interval_s, save_s, between_failures_s, restart_s):
    return save_s / (interval_s + save_s) + (interval_s / 2 + restart_s) / between_failures_s


def checkpoints(interval_s=3600.0, num_gpus=16_384, save_s=60.0, restart_s=600.0, gpu_mtbf_s=5.2 * units.YEAR):
    between_failures_s = gpu_mtbf_s / num_gpus
    wastes = [100 * waste_fraction(one, save_s, between_failures_s, restart_s) for one in intervals_s]
    here = waste_fraction(interval_s, save_s, between_failures_s, restart_s)
    if here >= 1:
        interval = units.format_time_s(between_failures_s)
        raise ValueError(f"Nothing gets done: a failure comes every {interval}, and saving and repeating take longer.")
    best_s = intervals_s[wastes.index(min(wastes))]
    picture = draw.Picture(9, 3.4)
    axes = picture.subplots()
    axes.semilogx([one / 60 for one in intervals_s], wastes, linewidth=2.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.plot(interval_s / 60, 100 * here, "o", color="#D55E00", markersize=10)
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda interval, _: units.format_as("interval_s", 60 * interval))
    axes.set(xlabel="time between checkpoints", ylabel="time lost (%)", ylim=(0, 100))
    picture.alt = f"Least is lost with a checkpoint every {units.format_time_s(best_s)}; here {here:.1%} is."
    axes.set_title(picture.alt, loc="left", fontsize=11, fontweight="bold")
    return picture, {"between_failures_s": between_failures_s, "lost_fraction": here}


explore(
    checkpoints,
    interval_s=(60.0, 50_000.0, "x1.2"),
    num_gpus=(8, 131_072, "x2"),
    save_s=(1.0, 1000.0, "x1.5"),
    restart_s=(10.0, 3600.0, "x1.5"),
)
