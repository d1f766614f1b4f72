# score: 5
# hint: NotImplementedError
# Only the first two functions are written.


# %% average_gradients
def average_gradients(model, num_local_samples):
    raise NotImplementedError()


# %% synchronise_buffers
def synchronise_buffers(model):
    raise NotImplementedError()


# %% train
def train(model, images, labels, *, num_epochs, batch_size, lr, seed):
    raise NotImplementedError()
