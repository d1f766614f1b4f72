# score: 21
# hint: the cost is what you write
# The plan is the best one of ws.plan, by its own cost.

# %% choose
from worldsize.models import shape


def choose(job, machine):
    sizes = {"num_layers": job.num_layers, "width": job.width, "num_heads": job.num_heads}
    sizes |= {"num_kv_heads": job.num_heads, "hidden_width": job.hidden_width}
    model = replace(shape("gpt-1t"), **sizes, vocab_size=job.vocab_size, context_length=job.length)
    gpu = replace(hardware.H100_NDR.gpu, memory_bytes=int(machine.memory_bytes))
    nodes = {"gpus_per_node": machine.gpus_per_node, "nics_per_node": machine.gpus_per_node}
    nodes["num_nodes"] = machine.num_gpus // machine.gpus_per_node
    cluster = replace(hardware.H100_NDR, gpu=gpu, **nodes)
    plan = ws.plan(model, cluster, global_batch=job.global_batch, num_chunks=1).best
    return Plan(plan.dp, plan.tp, plan.pp, plan.micro_batch, plan.recompute == "full")
