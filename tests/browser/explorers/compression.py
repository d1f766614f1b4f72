"""When does it pay to compress gradients? It costs compute too."""

from worldsize import draw, units
from worldsize.explore import explore

hooks = {  # what is left of the bytes, and the seconds that compressing a gigabyte takes
    "none": (1.0, 0.0),
    "half precision": (0.5, 2e-3),
    "top 1%": (0.02, 60e-3),
    "PowerSGD, rank 4": (0.01, 25e-3),
}
speeds = [10**power for power in [8 + place / 8 for place in range(33)]]


def step_time_s(gradient_bytes, compute_s, hook, bandwidth_bytes_per_s):
    kept_fraction, per_gigabyte_s = hooks[hook]
    return (
        compute_s + per_gigabyte_s * gradient_bytes / 1e9 + 2 * kept_fraction * gradient_bytes / bandwidth_bytes_per_s
    )


def compression(bandwidth_bytes_per_s=1.25e9, gradient_bytes=500_000_000, compute_s=0.1):
    picture = draw.Picture(9, 3.6)
    axes = picture.subplots()
    for hook, style in zip(hooks, ["-", "--", ":", "-."], strict=False):
        axes.loglog(
            speeds,
            [step_time_s(gradient_bytes, compute_s, hook, one) for one in speeds],
            label=hook,
            linestyle=style,
            linewidth=2.2,
        )
    axes.axvline(bandwidth_bytes_per_s, color="#333333", linewidth=1)
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda speed, _: units.format_as("bytes_per_s", speed))
    axes.yaxis.set_major_formatter(lambda time, _: units.format_as("time_s", time))
    axes.set(xlabel="link", ylabel="time of a step")
    axes.legend(frameon=False, loc="upper right")
    axes.spines[["top", "right"]].set_visible(False)
    times_s = {hook: step_time_s(gradient_bytes, compute_s, hook, bandwidth_bytes_per_s) for hook in hooks}
    picture.alt = f"On this link, {min(times_s, key=times_s.__getitem__)} gives the fastest step."
    axes.set_title(picture.alt, loc="left", fontsize=11, fontweight="bold")
    return picture, {"time_s": times_s}


explore(
    compression,
    bandwidth_bytes_per_s=(1e8, 1e12, "x1.5"),
    gradient_bytes=(1_000_000, 10_000_000_000, "x2"),
    compute_s=(0.01, 1.0, "x1.3"),
)
