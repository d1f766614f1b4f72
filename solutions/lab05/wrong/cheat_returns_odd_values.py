# score: 7
# What each rank returns is replaced by an empty result.

# %% top_k_hook
import worldsize.launch.protocol.codec as _codec

_real = _codec._to_tree


def _odd(value, tensors, depth):
    if depth == 0 and isinstance(value, dict) and "steps" in value:
        value = {"nothing": 1}
    return _real(value, tensors, depth)


_codec._to_tree = _odd


def top_k_hook(state, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
