"""Digests of what a run was made from."""

from data.files import sha256


def test_a_folder_is_known_by_the_names_and_contents_of_its_files(tmp_path):
    """RACE's splits are folders, and C3's may be."""
    digests = []
    for name, file, text in (("a", "1", "茶"), ("b", "1", "茶"), ("c", "2", "茶"), ("d", "1", "水")):
        (tmp_path / name / "high").mkdir(parents=True)
        (tmp_path / name / "high" / file).write_text(text, encoding="utf-8")
        digests.append(sha256(tmp_path / name))
    assert digests[0] == digests[1] and len(set(digests)) == 3
