from data.files import replacing, sha256


def test_a_folder_is_known_by_the_names_and_contents_of_its_files(tmp_path):
    """RACE's splits are folders, and C3's may be."""
    digests = []
    for name, file, text in (("a", "1", "茶"), ("b", "1", "茶"), ("c", "2", "茶"), ("d", "1", "水")):
        (tmp_path / name / "high").mkdir(parents=True)
        (tmp_path / name / "high" / file).write_text(text, encoding="utf-8")
        digests.append(sha256(tmp_path / name))
    assert digests[0] == digests[1] and len(set(digests)) == 3


def test_two_writers_of_a_file_with_one_process_id_do_not_write_into_each_others(tmp_path):
    """Workers in containers that share a disk, or threads of one."""
    path = tmp_path / "a.txt"
    with replacing(path) as first:
        first.write_text("一二三")
        with replacing(path) as second:
            second.write_text("一")
        assert path.read_text() == "一" and first.read_text() == "一二三"
    assert path.read_text() == "一二三" and list(tmp_path.iterdir()) == [path]
