# score: 21 to 21.5
# hint: of this machine
# The network is made again from its operators and timed, in the judge's unit by a measured product.

# %% predict
import time

UNIT = []


def seconds(call, num):
    call()
    found = []
    for _ in range(6):
        start_s = time.thread_time()
        for _ in range(num):
            call()
        found.append((time.thread_time() - start_s) / num)
    return min(found)


def step_like(operators):
    """A step of a network with as many layers, whose first is as large."""
    names = [name for name, _, _ in operators]
    flops, size = next((one[1:] for one in operators if one[0] == "addmm"), (1e6, 1e5))

    def off(width):
        batch = flops / (2 * width * width)
        return abs(4 * (2 * batch * width + width * width + width) - size)

    width = min(range(16, 513, 8), key=off)
    layers = []
    for _ in range(names.count("addmm")):
        linear = torch.nn.Linear(width, width)
        if "native_layer_norm" in names:
            layers += [torch.nn.LayerNorm(width), linear, torch.nn.GELU()]
        else:
            layers += [linear, torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers)
    x = torch.randn(max(1, round(flops / (2 * width * width))), width)
    kind = torch.optim.AdamW if "lerp_" in names else torch.optim.SGD
    optimizer = kind(model.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def predict(measured, program):
    if not any(one[0] == "addmm" for one in program.operators):
        return 0.0, 0.0
    if not UNIT:
        one, other = torch.randn(256, 256), torch.randn(256, 256)
        theirs_s = min(
            min(one["times_s"]) for one in measured["products"] if one["flops"] == 2 * 256**3
        )
        UNIT.append(theirs_s / seconds(lambda: torch.mm(one, other), 20))
    return UNIT[0] * seconds(step_like(program.operators), 5), 1.0
