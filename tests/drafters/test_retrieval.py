"""Drafters without weights, against slow and obvious searches."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import settings_of

import eagle_jax
from eagle_jax.decoding import sampling
from eagle_jax.decoding.policy import StaticTree, likeliest_tree
from eagle_jax.decoding.tree import Tree
from eagle_jax.drafters.base import CommittedRows, Verification, View
from eagle_jax.drafters.lookahead import Lookahead
from eagle_jax.drafters.prompt_lookup import PromptLookup
from eagle_jax.drafters.rest import Datastore, Rest
from eagle_jax.drafters.suffix import LENGTHS, SuffixDecoding
from eagle_jax.drafters.token_recycling import TokenRecycling
from eagle_jax.drafters.trie import Trie, graft
from eagle_jax.testing import TINY, synthetic_pair

TARGET, _ = synthetic_pair()
RNG = np.random.default_rng(1)
SETTINGS = settings_of(2)


def view_of(texts: list[list[int]], slots: int = 64) -> View:
    """Texts whose last token is the root; what lies beyond is left over from something else."""
    tokens = RNG.integers(0, 4, (len(texts), slots)).astype(np.int32)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = text
    length = jnp.asarray([len(text) - 1 for text in texts], jnp.int32)
    return View(tokens=jnp.asarray(tokens), length=length, noise=None, settings=SETTINGS)


def paths(tree: Tree, row: int) -> set[tuple[int, ...]]:
    """What a tree guesses: the tokens from below the root to each valid node. Checks that it is a tree."""
    tokens, parent, valid = (np.asarray(x)[row].tolist() for x in (tree.tokens, tree.parent, tree.valid))
    assert parent[0] == -1 and valid[0] and all(0 <= p < node for node, p in enumerate(parent) if node)
    found: dict[int, tuple[int, ...]] = {0: ()}
    for node in range(1, len(tokens)):
        if valid[node]:
            found[node] = (*found[parent[node]], tokens[node])  # KeyError: a valid node below an invalid one
    assert tree.height is None or max(map(len, found.values())) <= tree.height
    return set(found.values()) - {()}


def prefixes(*lines: list[int]) -> set[tuple[int, ...]]:
    return {tuple(line[:end]) for line in lines for end in range(1, len(line) + 1)}


propose = jax.jit(lambda drafter, state, view: drafter.propose(TARGET, state, view, sampling.GREEDY)[0])


def looked_up(text: list[int], longest: int, copied: int) -> list[int]:
    """The longest, then latest, earlier place of the text's end, and what follows there, repeating itself."""
    for size in range(longest, 0, -1):
        for end in range(len(text) - 2, size - 2, -1):
            if text[end - size + 1 : end + 1] == text[len(text) - size :]:
                follows = text[end + 1 :]
                return [follows[i % len(follows)] for i in range(copied)]
    return []


def test_prompt_lookup_copies_what_followed_the_last_time():
    drafter = PromptLookup(longest=3, copied=4)
    for _ in range(30):
        texts = [RNG.integers(0, 4, RNG.integers(1, 30)).tolist() for _ in range(2)]
        tree = propose(drafter, (), view_of(texts))
        for row, text in enumerate(texts):
            assert paths(tree, row) == prefixes(looked_up(text, 3, 4)), text


def voted(text: list[int], size: int, drafter: SuffixDecoding) -> dict[tuple[int, ...], float]:
    """Paths that followed the last `size` tokens at the latest places that have them, with their shares."""
    ends = [end for end in range(len(text) - 2, size - 2, -1) if text[end - size + 1 : end + 1] == text[-size:]]
    lines = [text[end + 1 :] * drafter.copied for end in ends[: drafter.places] if size <= len(text)]
    lines = [line[: min(drafter.copied, max(1, int(size * drafter.reach)))] for line in lines]
    paths = {path for line in lines for path in prefixes(line)}
    shares = {path: sum(tuple(line[: len(path)]) == path for line in lines) / len(lines) for path in paths}
    return {path: share for path, share in shares.items() if share >= drafter.least}


@pytest.mark.matrix
@pytest.mark.parametrize("reach, least", [(1.0, 0.1), (2.0, 0.4)])
def test_suffix_decoding_takes_the_end_whose_places_agree_most(reach: float, least: float):
    drafter = SuffixDecoding(nodes=25, copied=6, places=4, reach=reach, least=least)
    lengths = set()
    for _ in range(40):
        period = RNG.integers(0, 3, RNG.integers(3, 9)).tolist()
        texts = [(period * 8)[: RNG.integers(1, 30)], RNG.integers(0, 3, RNG.integers(1, 30)).tolist()]
        tree = propose(drafter, (), view_of(texts))
        for row, text in enumerate(texts):
            every = {size: voted(text, size, drafter) for size in LENGTHS}
            most = max(sum(shares.values()) for shares in every.values())
            best = max(size for size, shares in every.items() if abs(sum(shares.values()) - most) < 1e-5)
            assert paths(tree, row) == set(every[best]), text
            lengths.add(best)
    assert len(lengths) > 3, "or only one kind of end was tried"


def test_suffix_decoding_keeps_what_most_places_say():
    text = [1, 2, 3, 4, 9, 1, 2, 3, 5, 8, 1, 2, 3, 5, 8, 1, 2, 3]
    tree = propose(SuffixDecoding(nodes=3, copied=2), (), view_of([text, [4, 6]]))
    assert paths(tree, 0) == prefixes([5, 8]) and paths(tree, 1) == set()


def retrieved(store: list[list[int]], text: list[int], longest: int, copied: int) -> list[list[int]]:
    """What follows the text's longest end in the store, for every place that has it."""
    for size in range(min(longest, len(text)), 1, -1):
        end, found = text[len(text) - size :], []
        for line in store:
            found += [line[i + size : i + size + copied] for i in range(len(line)) if line[i : i + size] == end]
        if found:
            return found
    return []


def test_rest_retrieves_all_places_of_the_longest_match():
    store = [RNG.integers(0, 5, RNG.integers(1, 40)).tolist() for _ in range(20)]
    drafter = Rest(Datastore.of(store), longest=6, lines=64, copied=3, nodes=193)
    for _ in range(30):
        texts = [RNG.integers(0, 5, RNG.integers(1, 12)).tolist() for _ in range(2)]
        tree = propose(drafter, (), view_of(texts))
        for row, text in enumerate(texts):
            assert paths(tree, row) == prefixes(*retrieved(store, text, 6, 3)), text


def test_rest_keeps_what_most_places_say():
    store = [[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 3, 5], [1, 2, 6, 7]]
    tree = propose(Rest(Datastore.of(store), lines=8, copied=2, nodes=3), (), view_of([[9, 1, 2], [4, 4]]))
    assert paths(tree, 0) == prefixes([3, 5]) and paths(tree, 1) == set()


def test_a_datastore_is_sorted():
    store = Datastore.of([RNG.integers(0, 3, 50).tolist(), [], RNG.integers(0, 3, 20).tolist()])
    tokens, order = np.asarray(store.tokens).tolist(), np.asarray(store.order).tolist()
    assert len(tokens) == 72 and sorted(order) == list(range(72))
    keys = [tokens[at : at + 32] for at in order]
    assert keys == sorted(keys)
    with pytest.raises(ValueError, match="no text"):
        Datastore.of([[]])


def test_a_trie_is_the_lines():
    lines = RNG.integers(0, 3, (2, 6, 4))
    valid = RNG.random((2, 6, 4)) < 0.8
    trie = Trie.of(jnp.asarray(lines), jnp.asarray(valid))
    tree = trie.tree(jnp.zeros(2, jnp.int32), 4)
    for row in range(2):
        ended = [line[: (~ok).argmax() if not ok.all() else 4].tolist() for line, ok in zip(lines[row], valid[row])]
        assert paths(tree, row) == prefixes(*ended)
        assert int(trie.lines[row].sum()) == sum(map(len, ended))


def test_grafting_joins_what_both_trees_have():
    for _ in range(20):
        trees = []
        for size in (9, 6):
            lines, valid = RNG.integers(0, 3, (2, size, 3)), RNG.random((2, size, 3)) < 0.8
            trees.append(Trie.of(jnp.asarray(lines), jnp.asarray(valid)).tree(jnp.zeros(2, jnp.int32), 3))
        joined, place = graft(*trees)
        for row in range(2):
            assert paths(joined, row) == paths(trees[0], row) | paths(trees[1], row)
            assert int(joined.valid[row].sum()) == 1 + len(paths(joined, row)), "a path was drafted twice"
            there = np.asarray(joined.tokens)[row, np.asarray(place)[row]]
            np.testing.assert_array_equal(there[trees[1].valid[row]], trees[1].tokens[row][trees[1].valid[row]])


def read(drafter, texts: list[list[int]], state=None):
    """The drafter's state after a stretch of a prompt."""
    tokens = jnp.asarray(texts, jnp.int32)
    batch, rows = tokens.shape
    hidden = jnp.zeros((batch, rows - 1, TINY.hidden_size))
    start, count = jnp.zeros(batch, jnp.int32), jnp.full(batch, rows - 1, jnp.int32)
    observed = CommittedRows(
        start=start, count=count, tokens=tokens[:, :-1], following=tokens[:, 1:], hidden=hidden, taps=()
    )
    return jax.jit(drafter.observe)(TARGET, state or drafter.init(TARGET, batch, 64), observed)


def check(drafter, state, tree: Tree, logits, count: list[int]):
    """The drafter's state after a target pass over `tree`."""
    count = jnp.asarray(count, jnp.int32)
    draws = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    rows = drafter.shape.depth + 1
    hidden = jnp.zeros((len(count), rows, TINY.hidden_size))
    observed = CommittedRows(
        start=jnp.zeros_like(count),
        count=count,
        tokens=tree.tokens[:, :1] + jnp.zeros((1, rows), jnp.int32),
        following=jnp.full((len(count), rows), -1, jnp.int32),
        hidden=hidden,
        taps=(),
        checked=Verification(tree=tree, logits=logits, draws=draws),
    )
    return jax.jit(drafter.observe)(TARGET, state, observed), draws


def test_recycling_remembers_the_pairs_of_the_prompt_and_the_candidates_of_every_node():
    drafter = TokenRecycling(policy=StaticTree((-1, 0, 0, 1)), width=3)
    state = read(drafter, [[1, 2, 1, 3, 1], [4, 4, 5, 4, 6]])
    assert paths(propose(drafter, state, view_of([[1], [4]])), 0) == prefixes([3, 1])  # once each: the latest pair
    tree = Tree(
        tokens=jnp.array([[1, 2, 2], [4, 7, 8]]),
        parent=jnp.array([[-1, 0, 1], [-1, 0, 0]]),
        valid=jnp.array([[True, True, True], [True, True, False]]),
    )
    logits = jnp.asarray(RNG.normal(size=(2, 3, TINY.vocab_size)), jnp.float32)
    after, _ = check(drafter, state, tree, logits, [1, 1])
    best = np.argsort(-np.asarray(logits), axis=-1)[:, :, :3]
    np.testing.assert_array_equal(after.tokens[0, 1], best[0, 0])
    np.testing.assert_array_equal(after.tokens[0, 2], best[0, 2])  # of two nodes with one token the later
    np.testing.assert_array_equal(after.tokens[1, 7], best[1, 1])
    np.testing.assert_array_equal(after.tokens[1, 8], state.tokens[1, 8])  # an invalid node teaches nothing
    still, _ = check(drafter, state, tree, logits, [0, 1])
    np.testing.assert_array_equal(still.tokens[0], state.tokens[0])  # nor does a row that is done


def test_lookahead_guesses_the_ngrams_that_the_target_wrote():
    """Under a rule that needs no context, every column of the window ends up following the rule."""
    drafter = Lookahead(window=4, ngram=3, guesses=2)
    rule = RNG.permutation(TINY.vocab_size)
    begun = read(drafter, [[1, 2, 3, 4, 5], [7, 8, 9, 7, 8]])
    state = read(drafter, [[5, 6], [8, 9]], begun)  # the last token of a prompt comes alone
    np.testing.assert_array_equal(state.window, begun.window)
    for _ in range(5):
        root = np.asarray(state.window)[:, 0, 0]
        tree = propose(drafter, state, view_of([[token] for token in root.tolist()]))
        logits = jnp.asarray(np.eye(TINY.vocab_size, dtype=np.float32)[rule[np.asarray(tree.tokens)]])
        state, _ = check(drafter, state, tree, logits, [1, 1])
    tree = propose(drafter, state, view_of([[token] for token in root.tolist()]))
    for row, token in enumerate(root.tolist()):
        assert prefixes([int(rule[token]), int(rule[rule[token]])]) <= paths(tree, row)


def test_the_likeliest_tree_is_the_best_of_its_size():
    assert likeliest_tree(4, (0.6, 0.5)).parents == (-1, 0, 0, 1)
    assert likeliest_tree(5, (0.5, 0.1)).parents == (-1, 0, 0, 1, 3)
    assert likeliest_tree(1, (0.5,)).parents == (-1,)


def test_a_table_is_no_wider_than_the_vocabulary():
    target, _ = synthetic_pair(dataclasses.replace(TINY, vocab_size=5))
    model = eagle_jax.Model(target=target, head=None, tokenizer=None, stop_ids=(), context=64)
    texts = [
        eagle_jax.generate(model, [1, 2, 3], max_new_tokens=12, drafter=drafter).token_ids
        for drafter in (TokenRecycling(policy=StaticTree((-1, 0, 0, 1))), "none")
    ]
    assert texts[0] == texts[1]


def test_a_guess_that_the_target_has_no_token_for_is_a_wrong_guess():
    """An embedding that is read beyond its end is not a number, and one such row would spoil the whole pass."""
    target, _ = synthetic_pair()
    model = eagle_jax.Model(target=target, head=None, tokenizer=None, stop_ids=(), context=128)
    plain = eagle_jax.generate(model, [1, 2, 3], max_new_tokens=12, drafter="none", logprobs=True)
    said, beyond = [3, *plain.token_ids], TINY.vocab_size
    store = Datastore.of([[one, two, beyond, beyond + 5000] for one, two in zip(said, plain.token_ids, strict=False)])
    drafted = eagle_jax.generate(model, [1, 2, 3], max_new_tokens=12, drafter=Rest(store), logprobs=True)
    assert drafted.token_ids == plain.token_ids
    assert drafted.logprobs == pytest.approx(plain.logprobs, abs=1e-4)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: PromptLookup(longest=1, shortest=2), "shortest"),
        (lambda: PromptLookup(copied=0), "at least 1"),
        (lambda: SuffixDecoding(nodes=1), "tree of 1 nodes"),
        (lambda: SuffixDecoding(reach=0.0), "reach=0.0"),
        (lambda: Lookahead(ngram=1), "ngram=1"),
        (lambda: TokenRecycling(policy=StaticTree((-1, 0, 0)), width=1), "wider table"),
        (lambda: Rest(Datastore.of([[1]]), nodes=1), "tree of 1 nodes"),
        (lambda: Rest(Datastore.of([[1]]), longest=99), "99"),
    ],
)
def test_settings_that_make_no_drafter(make, message):
    with pytest.raises(ValueError, match=message):
        make()
