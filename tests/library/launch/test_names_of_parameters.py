"""DDP's error about unused parameters gives their names."""

import pytest
import torch

import worldsize as ws


def leaves_two_out():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.used = torch.nn.Linear(4, 4)
            self.extra = torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.used(x)

    model = torch.nn.parallel.DistributedDataParallel(Net())
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()


@pytest.mark.parametrize("cluster", [None, "dgx-h100"])
def test_unused_parameters_are_named(cluster):
    with pytest.raises(ws.RankFailed, match=r"2 \(extra\.weight\), 3 \(extra\.bias\)") as caught:
        ws.run(leaves_two_out, world_size=2, cluster=cluster, echo=False)
    assert "find_unused_parameters=True. (docs/troubleshooting.md#a-rank-fails)" in str(caught.value).splitlines()[-1]
