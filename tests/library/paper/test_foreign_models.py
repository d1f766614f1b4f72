"""A model that nobody here wrote, unmodified: transformers' Llama by FSDP2 and by tensor parallelism."""

import importlib.util

import pytest
from needs import give_up

import worldsize as ws


def train(is_split):
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from transformers import LlamaConfig, LlamaForCausalLM  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "vocab_size": 256}
    model = LlamaForCausalLM(LlamaConfig(num_attention_heads=4, num_key_value_heads=4, **sizes))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp" if is_split else "dp",))
    for layer in model.model.layers:
        if is_split:
            columns = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"]
            plan = {name: ColwiseParallel() for name in columns}
            plan |= {name: RowwiseParallel() for name in ("self_attn.o_proj", "mlp.down_proj")}
            parallelize_module(layer, mesh, plan)
        else:
            fully_shard(layer, mesh=mesh)
    if not is_split:
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)  # of tensors and DTensors side by side
    tokens = torch.randint(0, 256, (2, 32))
    for _ in range(2):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


@pytest.mark.parametrize("is_split", [False, True], ids=["fsdp", "tp"])
def test_transformers_llama_is_the_same_on_paper_and_with_data(is_split):
    if importlib.util.find_spec("transformers") is None:
        give_up("transformers", "needs transformers: pip install -e '.[transformers]'")
    real = ws.run(train, is_split, world_size=4, cluster="dgx-h100", memory=True, echo=False)
    paper = ws.paper(train, is_split, world_size=4, cluster="dgx-h100", echo=False)
    assert paper.timeline.bytes_sent(0) == real.timeline.bytes_sent(0) > 0
    assert paper.timeline.end_s == pytest.approx(real.timeline.end_s, rel=0.001)
    assert paper.memory[0].most_bytes == pytest.approx(real.memory[0].most_bytes, abs=256)
