"""What the table of methods and peers compares with what."""

from benchmarks.common.turns import Answer, Timed
from benchmarks.peers.against_peers import compared


def timed(seconds: float, *texts: list[int]) -> Timed:
    answer = dict(seconds=seconds, decoding=seconds / 2, steps=2, committed=4)
    return Timed([[Answer(token_ids=text, **answer)] for text in texts])


def test_texts_and_speeds_are_compared_with_those_they_belong_to():
    first, second = [[1, 2], [3, 4]], [[1, 2], [5, 6]]
    columns, rows = compared(
        {
            "eagle_jax plain, bfloat16": timed(1.0, *first),
            "eagle_jax EAGLE, auto, bfloat16": timed(0.5, *first),
            "eagle_jax plain, int8": timed(2.0, *second),
            "eagle_jax EAGLE, auto, int8": timed(0.5, *second),
            "llama.cpp plain": timed(4.0, *first),
            "llama.cpp ngram-mod": timed(2.0, *second),
        }
    )
    by_name = {row[0]: dict(zip(columns, row, strict=True)) for row in rows}
    texts = {name: row["texts as eagle_jax plain"] for name, row in by_name.items()}
    assert texts == dict.fromkeys(by_name, "2 of 2") | {"llama.cpp ngram-mod": "1 of 2"}
    own = {name: row["against own plain"] for name, row in by_name.items()}
    assert list(own.values()) == [1, 2, 1, 4, 1, 1]
    eagle = by_name["eagle_jax EAGLE, auto, int8"]
    assert (eagle["against llama.cpp plain"], eagle["against llama.cpp"]) == (8, 4), "the best of its modes"
    assert eagle["mean acceptance length"] == 2 and "against HF" not in columns
