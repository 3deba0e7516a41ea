import torch
import transformers

from albert.checkpoints import load_pretrained
from albert.model import pack
from data.samples import shipped_checkpoint
from data.tokenization import find_tokenizer


def test_it_is_found_by_name_small_and_the_same_in_transformers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = shipped_checkpoint("tiny-zh")
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 9e6
    assert find_tokenizer("tiny-zh") == folder / "vocab.txt" and shipped_checkpoint("..") is None
    model, tokenizer = load_pretrained("tiny-zh")
    theirs = transformers.AlbertForPreTraining.from_pretrained(folder, dtype=torch.float32).eval()
    text = transformers.AutoTokenizer.from_pretrained(folder)("水开以后再泡[MASK]。", return_tensors="pt")
    ids = text["input_ids"][0].tolist()
    assert ids[1:-3] == tokenizer.encode("水开以后再泡")[0].tolist()
    with torch.no_grad():
        ours = model.eval().mlm_logits(model.encoder(pack([ids])))
        assert torch.allclose(ours, theirs(**text).prediction_logits[0], atol=1e-4)
