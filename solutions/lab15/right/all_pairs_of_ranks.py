# Replicas are compared pair by pair; a deviation that is nan is above every limit.


# %% first_difference
def first_difference(records: list[Record]) -> tuple[int, str] | None:
    """The first step and parameter in which replicas have different weights; None if they never do.

    - Weights differ if `relative` is above ROUNDING for two replicas: ranks that hold the same
      shard of the parameter, or all of it. Different shards are not compared.
    - The step is the number, from 0, of the first step before which they differ, and the number of
      steps if they differ only after the last one.
    - Of several parameters in one step it is the first in the order of the records.
    """
    of_ranks = [[step.before for step in one.steps] + [one.steps[-1].after] for one in records]
    names = list(of_ranks[0][0])
    found = []
    for one, mine in enumerate(of_ranks):
        for other, theirs in enumerate(of_ranks[:one]):
            for step, (first, second) in enumerate(zip(mine, theirs, strict=True)):
                for place, name in enumerate(names):
                    its = records[one].shards.get(name), records[other].shards.get(name)
                    if its[0] == its[1] and relative(first[name], second[name]) > ROUNDING:
                        found.append((step, place))
    return (min(found)[0], names[min(found)[1]]) if found else None


# %% first_deviation
def first_deviation(
    one: list[dict], other: list[dict], perturbed: list[dict], margin: float = 10.0
) -> tuple[int, str] | None:
    """The first step and tensor in which two runs differ by more than rounding; None if in none.

    - A run is a list of steps, each a dictionary of sketches by name of the tensor.
    - `perturbed` is the run of `one` from weights that were changed in the last bit. In each step
      the tolerance is `margin` times the largest `relative` difference of a tensor of `one` from
      `perturbed`, and at least `4e-6`. A tensor differs if it is further off, by `relative`.
    - Steps are numbered from 0; of several tensors it is the first in the order of `one`.
    - A tensor with numbers that are not finite in `other` only differs. If they are not finite in
      `one` or `perturbed` either, the tensor is left out.
    - Runs may have different tensors and numbers of steps: only what all three have is compared.
    """

    from math import isfinite

    for step in range(min(len(one), len(other), len(perturbed))):
        known = {}
        for name, mine in one[step].items():
            rounded, theirs = perturbed[step].get(name), other[step].get(name)
            if rounded is not None and theirs is not None and all(map(isfinite, mine + rounded)):
                known[name] = relative(mine, rounded), relative(mine, theirs)
        limit = max([4e-6, *(margin * noise for noise, _ in known.values())])
        for name, (_, off) in known.items():
            if not off <= limit:
                return step, name
    return None
