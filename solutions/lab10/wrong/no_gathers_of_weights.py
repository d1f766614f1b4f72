# score: 23
# ZeRO-3 costs nothing beside the gradients.

# %% predict
def predict(run: published_runs.PublishedRun, anchor: published_runs.PublishedRun) -> float:
    def model_s(one):
        gpu = one.gpu[:4]
        nvlink, network = 0.35 * NVLINK_BYTES_PER_S[gpu], 0.7 * NETWORK_BYTES_PER_S[gpu]
        rate, memory = 0.5 * PEAK_FLOPS_PER_S[gpu], 0.58 * MEMORY_BYTES_PER_S[gpu]
        tokens = one.micro_batch * one.length
        num = one.global_batch / (one.dp * one.micro_batch)
        passes, sums = (4, 6) if one.recompute == "full" else (3, 4)
        weights = 4 * one.width**2 + 2 * one.width * one.hidden_width
        attention = 4 * one.length * one.width * (1.3 if one.has_flash else 1)  # it runs slower
        flops = passes * (2 * weights + attention)
        flops += attention if one.recompute == "selective" else 0
        cut = one.tp if one.is_sequence_split else 1 + 0.7 * (one.tp - 1)
        moved = 34 * tokens * one.width / cut
        if not one.has_flash:
            moved += 10 * one.num_heads / one.tp * one.length * tokens
        summed = 4 * (one.tp - 1) / one.tp * tokens * one.width
        link = nvlink if one.tp <= 8 else network
        layer_s = tokens * flops / one.tp / rate + passes * moved / memory + sums * summed / link
        stage_s = one.num_layers / one.pp * layer_s
        if one.pp > 1:
            stage_s += 4 * one.num_chunks * tokens * one.width / one.tp / network
        head_s = 6 * tokens * one.width * one.vocab_size / one.tp / rate
        total_s = stage_s * (num + (one.pp - 1) / one.num_chunks) + head_s * num
        parameters = (one.num_layers * weights / one.pp + one.vocab_size * one.width) / one.tp
        link = nvlink if one.tp * one.dp <= 8 else network
        sent_s = parameters * (one.dp - 1) / one.dp / link  # of one byte for each parameter
        if one.zero_stage == 33:
            total_s = max(total_s, 6 * num * sent_s) + 0.1 * min(total_s, 6 * num * sent_s)
        else:
            total_s += 0.1 * 8 * sent_s
        return total_s + 28 * parameters / (one.dp if one.zero_stage else 1) / memory

    return model_s(run) / model_s(anchor) * anchor.step_s
