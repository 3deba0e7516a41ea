"""The kernels, the model and the training step on a GPU: correctness, speed and memory."""
