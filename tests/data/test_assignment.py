import json
import random

import pyarrow.parquet as pq
import pytest

from data.planning import plan
from data.recipe import RefreshSettings
from data.refresh import divide, read

FOOTER = "本网站所有内容均为转载，版权归原作者所有，如有侵权请联系删除。"


@pytest.mark.parametrize("carriers, reason", [(49, None), (50, "boilerplate")])
def test_a_sentence_of_fifty_documents_drops_those_it_fills(tmp_path, vocabulary_file, carriers, reason):
    """By the default rules. Five long documents end in the same sentence, and stay."""
    rng = random.Random(0)
    lengths = [200] * 5 + [8] * (carriers - 5)
    texts = ["".join(chr(rng.randrange(0x4E00, 0x9F00)) for _ in range(length)) for length in lengths]
    rows = [json.dumps({"text": f"{text}。{FOOTER}"}) for text in texts]
    (tmp_path / "raw.jsonl").write_text("\n".join(rows), encoding="utf-8")
    settings = RefreshSettings(
        corpus="c",
        sources=(str(tmp_path / "raw.jsonl"),),
        workspace=tmp_path / "w",
        tokenizer=str(vocabulary_file),
        workers=1,
    )
    planned = plan(settings)
    division = divide(planned, [read(file, planned) for file in planned.files])
    listed = pq.read_table(division.listed_path, columns=["position", "reason"]).sort_by("position")
    assert listed["reason"].to_pylist() == [None] * 5 + [reason] * (carriers - 5)
