"""Whether a corpus holds a task's texts."""

from data.cleaning import CleaningRules, clean_text
from data.recipe import RefreshSettings
from data.refresh import refresh
from flows.measurements import contamination

TEXT = "第１２３号茶室和第４５６号茶室的ＷＩＦＩ密码都在门后"
OTHER = "第７号仓库和第８９号仓库的钥匙都交给了值班的人"


def test_texts_are_looked_for_as_cleaning_left_them(vocabulary_file, tmp_path):
    source = tmp_path / "rooms.txt"
    source.write_text(f"{TEXT}。\n", encoding="utf-8")
    refresh(
        RefreshSettings(
            corpus="rooms",
            sources=(str(source),),
            workspace=tmp_path / "w",
            tokenizer=str(vocabulary_file),
            workers=1,
        )
    )
    assert clean_text(TEXT, CleaningRules()) != TEXT
    found = contamination([TEXT, OTHER], tmp_path / "w", "rooms", "test")
    assert (found.texts, found.found, found.documents) == (2, 1, 1)
