"""Writes the TensorFlow checkpoints of the tests, with TensorFlow 1's variables and saver:

    python -m tests.albert.tensorflow.write tests/albert/tensorflow

Beside each checkpoint stand its config, under the name it is published with, and its variables as TensorFlow
reads them. Their names, shapes and scopes, which are kept, are those of google-research/albert and albert_zh
(modeling.py of each); optimiser slots are those of AdamWeightDecay ("adam_m", "adam_v") and LAMB ("lamb_m",
"lamb_v").
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

SIZES = {
    "vocab_size": 31,
    "embedding_size": 6,
    "hidden_size": 12,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 16,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.02,
}
# name -> (layout, config, the config file's name, the prefix)
CHECKPOINTS = {
    "google": (
        "google",
        {**SIZES, "num_hidden_groups": 1, "inner_group_num": 1, "net_structure_type": 0, "gap_size": 0},
        "albert_config.json",
        "model.ckpt-best",
    ),
    "google-groups": (
        "google",
        {**SIZES, "num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2, "hidden_act": "relu"},
        "albert_config.json",
        "model.ckpt-best",
    ),
    # as albert_zh's "google_fast" models: 12 groups, of which 4 layers use 4
    "google-fast": (
        "google",
        {**SIZES, "num_hidden_layers": 4, "num_hidden_groups": 12, "inner_group_num": 1},
        "albert_config_tiny_g.json",
        "albert_model.ckpt",
    ),
    "bright": ("bright", {**SIZES, "ln_type": "postln"}, "albert_config_base.json", "albert_model.ckpt"),
    "bright-preln": (
        "bright",
        {**SIZES, "ln_type": "preln"},
        "albert_config_xxlarge.json",
        "albert_model.ckpt",
    ),
}


def write(name: str, folder: Path, *, seed: int = 0) -> dict[str, np.ndarray]:
    """Write one checkpoint; returns the model's variables as TensorFlow reads them back."""
    import tensorflow.compat.v1 as tf

    layout, config, config_name, prefix = CHECKPOINTS[name]
    slots = ("lamb_m", "lamb_v") if layout == "google" else ("adam_m", "adam_v")
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    with np.load(Path(__file__).parent / name / "variables.npz") as before:
        shapes = {variable: before[variable].shape for variable in before.files}
    with tf.Graph().as_default(), tf.Session() as session:
        for variable, shape in shapes.items():
            # biases and LayerNorm too, or a mixed-up name would not show
            value = rng.normal(0, 0.1 if len(shape) > 1 else 0.4, shape).astype(np.float32)
            tf.get_variable(variable, initializer=value)
            for slot in slots:
                tf.get_variable(f"{variable}/{slot}", initializer=np.full(shape, 7, np.float32))
        tf.get_variable("global_step", initializer=np.int64(125_000))
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, str(folder / prefix), write_meta_graph=False)
    (folder / "checkpoint").unlink()  # it only names the prefix
    (folder / config_name).write_text(json.dumps(config, indent=2) + "\n")
    reader = tf.train.load_checkpoint(str(folder / prefix))
    values = {variable: reader.get_tensor(variable) for variable in shapes}
    np.savez(folder / "variables.npz", **values)
    return values


if __name__ == "__main__":
    for checkpoint in CHECKPOINTS:
        write(checkpoint, Path(sys.argv[1]) / checkpoint)
