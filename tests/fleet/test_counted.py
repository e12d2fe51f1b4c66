from understudy_controlplane.fleet.counted import counted, times


def test_one_is_singular_and_all_else_plural() -> None:
    assert [counted(count, "node") for count in (0, 1, 2, 12_500)] == ["0 nodes", "1 node", "2 nodes", "12500 nodes"]
    assert [counted(count, "node is", "nodes are") for count in (1, 2)] == ["1 node is", "2 nodes are"]


def test_how_often() -> None:
    assert [times(count) for count in (0, 1, 2, 3)] == ["0 times", "once", "twice", "3 times"]
