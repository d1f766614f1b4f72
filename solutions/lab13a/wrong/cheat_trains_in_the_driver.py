# score: 20
# hint: When a worker was killed
# The trainer runs the function in its own process, with a context that it makes up.

# %% trainer
def trainer(loop, config: dict, fewest: int, most: int, folder: str):
    class Context:
        def get_world_rank(self):
            return 0

        def get_world_size(self):
            return 1

    class Here:
        def fit(self):
            ray.train.get_context, ray.train.get_checkpoint = Context, lambda: None
            ray.train.report = lambda *_, **__: None
            ray.train.torch.prepare_model = lambda model: model
            loop(config)

    return Here()
