# score: 12
# What each rank returns is replaced by dicts and lists of odd shapes.

# %% lars_step
import worldsize.launch.protocol.codec as _codec

_real = _codec._to_tree


def _odd(value, tensors, depth):
    is_result = depth == 0 and isinstance(value, list) and value and isinstance(value[0], dict)
    if is_result and "ratios" in value[0]:
        value[0] = {
            "ratios": [[1.0, 1.0, 1.0]],
            "layers": {"a": 1},
            "states": {"a": 2},
            "gradients": {"a": 3},
            "is_recorded": [],
        }
    return _real(value, tensors, depth)


_codec._to_tree = _odd


def lars_step(
    parameters,
    gradients,
    velocities,
    learning_rate,
    momentum=0.9,
    weight_decay=0.0,
    trust_coefficient=0.001,
):
    return [1.0 for _ in parameters]
