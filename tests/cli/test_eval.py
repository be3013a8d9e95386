import html.parser
import json
import pathlib

import pytest

from eagle_jax import api
from eagle_jax.cli.eval import _fingerprints
from eagle_jax.cli.eval_methods import parse_methods, with_models
from eagle_jax.evaluation.store import lock_folder
from eagle_jax.loading.folders import PAIR

QUESTIONS = [
    {"question_id": 81, "category": "writing", "turns": ["one", "two"]},
    {"question_id": 161, "category": "translation", "turns": ["word " * 200]},
    {"question_id": 162, "category": "translation", "turns": ["three"]},
]


@pytest.fixture
def asked(tmp_path) -> tuple[str, ...]:
    path = tmp_path / "q.jsonl"
    path.write_text("\n".join(map(json.dumps, QUESTIONS)))
    return ("eval", str(path), "--methods", "plain,eagle:6,3,2,prompt-lookup", "--out", str(tmp_path / "run"))


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
    return tmp_path / "run"


def lines(path: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_leaves_answers_and_a_report(fake, run, asked, folder):
    shown = run(*asked)
    assert shown.exit_code == 0, shown.output
    names = {
        ".lock",
        "run.json",
        "traces.json",
        "report.html",
        "plain.jsonl",
        "eagle_6_3_2.jsonl",
        "prompt-lookup.jsonl",
    }
    assert {path.name for path in folder.iterdir()} == names
    assert [line["question_id"] for line in lines(folder / "plain.jsonl")] == [81, 162]
    assert [request["drafter"] for _, request in fake.requests] == [
        "none", "none", "eagle", "eagle", "prompt-lookup", "prompt-lookup", "prompt-lookup", "none", "eagle"
    ]  # fmt: skip
    assert {str(request["tree"]) for _, request in fake.requests} == {"auto", "(6, 3, 2)"}
    rows = [line.split() for line in shown.stdout.splitlines() if line.strip()]
    assert [row[-2] for row in rows if row[:2] in (["plain", "-"], ["prompt-lookup", "chain"])] == ["3/3", "3/3"]
    assert "Skipped 1 of 3 questions: with 128 new tokens they exceed the context of 512." in shown.stderr
    assert fake.timed == ["none", "eagle", "prompt-lookup"]
    drawn = dict(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0)
    assert fake.timed_as == [drawn | {"max_new_tokens": 128}] * 3


def test_a_report_does_without_what_could_not_be_timed(fake, run, asked, folder):
    fake.untimed = RuntimeError("RESOURCE_EXHAUSTED:\nout of memory")
    shown = run(*asked)
    said = "could not be timed (RuntimeError: RESOURCE_EXHAUSTED: out of memory)."
    assert shown.exit_code == 0 and said in shown.stderr, shown.output
    assert (folder / "report.html").exists() and not (folder / "traces.json").exists()
    fake.untimed = None
    assert run(*asked).exit_code == 0 and (folder / "traces.json").exists()


def test_one_process_at_a_time(fake, run, asked, folder):
    with lock_folder(folder):
        shown = run(*asked)
    assert shown.exit_code == 2 and "another process is writing into" in shown.stderr and not fake.requests
    assert run(*asked).exit_code == 0


def test_cut_conversations_are_asked(fake, run, asked, folder):
    shown = run(*asked, "--cut")
    assert "Cut 1 prompt from the left to what fits." in shown.stderr and "Skipped" not in shown.stderr
    assert [line["choices"][0]["prompt_cut"][0] > 0 for line in lines(folder / "plain.jsonl")] == [False, True, False]


def test_the_same_command_goes_on_where_a_kill_was(fake, run, asked, folder):
    run(*asked)
    before = lines(folder / "eagle_6_3_2.jsonl")
    with (folder / "eagle_6_3_2.jsonl").open("r+") as file:
        file.truncate(len(json.dumps(before[0])) + 40)
    (folder / "prompt-lookup.jsonl").unlink()
    fake.requests.clear()
    shown = run(*asked)
    assert shown.exit_code == 0 and "its 1 complete lines are kept, and that question is asked again" in shown.stderr
    after = lines(folder / "eagle_6_3_2.jsonl")
    assert after[0] == before[0] and [line["question_id"] for line in after] == [81, 162]
    assert [request["drafter"] for _, request in fake.requests] == ["prompt-lookup"] * 3 + ["eagle"]
    assert fake.timed == ["none", "eagle", "prompt-lookup"], "the parts are timed once"


def test_what_was_answered_before_a_stop_stays(fake, run, asked, folder, monkeypatch):
    def some(*args, **kwargs):
        if len(fake.requests) == 3:
            raise KeyboardInterrupt
        return fake.generate(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(api, "generate", some)
        assert run(*asked).exit_code == 130
    assert len(lines(folder / "plain.jsonl")) == 1
    assert run(*asked).exit_code == 0 and len(lines(folder / "plain.jsonl")) == 2


def test_other_settings_are_refused(fake, run, asked, folder, monkeypatch):
    run(*asked)
    before = (folder / "plain.jsonl").read_bytes()
    shown = run(*asked, "--max-new-tokens", "64", "--temperature", "1")
    said = "begun with other settings: max_new_tokens was 128 and is 64 now; temperature was 0.0 and is 1.0 now; give"
    assert shown.exit_code == 2 and said in shown.stderr
    assert shown.stderr.count("\n") == 1 and (folder / "plain.jsonl").read_bytes() == before
    with monkeypatch.context() as patch:
        patch.setenv("EAGLE_JAX_ACTIVATIONS", "int16")
        shown = run(*asked)
    assert shown.exit_code == 2 and "EAGLE_JAX_ACTIVATIONS was not set and is int16 now" in shown.stderr
    shown = run(*asked, "--target-config", '{"rope_theta": 7}')
    assert shown.exit_code == 2 and """target_config was not set and is {"rope_theta": 7} now""" in shown.stderr
    shown = run(*asked, "--limit", "2")
    assert shown.exit_code == 2 and "questions was 3 with fingerprint " in shown.stderr


def test_what_cannot_be_is_refused_before_a_model_is_loaded(fake, run, asked, tmp_path):
    for more, sentence in (
        (("--methods", "plain,eagel"), "--methods has eagel; expected some of plain, auto, eagle, "),
        (("--out", str(tmp_path / "q.jsonl")), f"--out {tmp_path / 'q.jsonl'} is a file; expected a new folder"),
    ):
        shown = run(*asked, *more)
        assert shown.exit_code == 2 and sentence in shown.stderr and not fake.loads


def test_questions_are_repeated_and_a_run_goes_on_with_as_many(fake, run, asked, folder):
    shown = run(*asked, "--repeats", "2")
    assert shown.exit_code == 0 and "asked 2 times under each method; the quickest counts." in shown.stderr
    assert [request["drafter"] for _, request in fake.requests].count("prompt-lookup") == 2 * 3
    assert [line["question_id"] for line in lines(folder / "plain.jsonl")] == [81, 162]
    assert "asked 2 times" in (folder / "report.html").read_text()
    shown = run(*asked)
    assert shown.exit_code == 2 and "other settings: repeats was 2 and is 1 now; give" in shown.stderr


def test_another_head_at_the_same_path_is_refused(fake, run, asked, folder, monkeypatch):
    """The usual loop: train, evaluate, train again, evaluate again into the same folder."""
    made = {None: "b", "eagle3": "d"}
    monkeypatch.setattr(
        api, "fingerprints", lambda target, head, **_: {"target": "a", "head": made[head], "draft_model": None}
    )
    assert run(*asked).exit_code == 0
    said = json.loads((folder / "run.json").read_text())["settings"]["fingerprints"]
    assert said == {"fingerprint of target": "a", "fingerprint of head": "b"}
    made[None] = "c"
    shown = run(*asked)
    assert shown.exit_code == 2 and "other settings: fingerprint of head was b and is c now; give" in shown.stderr
    assert _fingerprints(None, ["eagle3"], None, None)["fingerprint of head eagle3"] == "d"


def test_fingerprints_of_what_the_commands_take():
    """A shipped head by its name, whether or not the target is named."""
    target, head = str(PAIR / "target"), str(PAIR / "head_eagle3")
    named, by_path = (_fingerprints(target, [name], None, None) for name in ("eagle3", head))
    assert named["fingerprint of head eagle3"] == by_path[f"fingerprint of head {head}"]
    assert named["fingerprint of target"] == _fingerprints(None, [], None, None)["fingerprint of target"]


def test_settings_that_nothing_was_answered_with_may_change(fake, run, asked, folder):
    fake.error = ValueError("temperature=-1.0 is negative")
    shown = run(*asked, "--temperature", "-1")
    assert shown.exit_code == 2 and shown.stderr.strip() == "eagle-jax: temperature=-1.0 is negative"
    fake.error = None
    assert run(*asked).exit_code == 0
    assert json.loads((folder / "run.json").read_text())["settings"]["sampling"]["temperature"] == 0.0


@pytest.mark.parametrize(
    "methods, sentence",
    [
        ("plain,magic", "--methods has magic; expected some of plain, auto, eagle"),
        ("plain,eagle:6;3", "the tree of eagle, '6;3' is not a tree"),
        ("plain,eagle,plain", "--methods names plain twice"),
        ("eagle,plain:60,7,10", "--methods has plain:60,7,10, but plain drafts nothing; write plain alone"),
        ("eagle,none@eagle1", "--methods has none@eagle1, but none drafts nothing; write none alone"),
        ("plain,eagle@", "--methods has eagle@, with nothing after the @; name one of the --head there"),
        ("plain,eagle@hydra", "--methods has eagle@hydra, and no --head is hydra; give --head hydra too"),
    ],
)
def test_methods_that_are_none(fake, run, asked, folder, methods, sentence):
    shown = run(*asked[:2], "--methods", methods, "--out", str(folder))
    assert shown.exit_code == 2 and shown.stderr.startswith(f"eagle-jax: {sentence}"), shown.stderr
    assert not folder.exists()


def test_questions_that_are_none(fake, run, asked, folder, tmp_path):
    (tmp_path / "q.jsonl").write_text(json.dumps(QUESTIONS[0]) + '\n{"question_id": 2}\n')
    shown = run(*asked)
    assert shown.exit_code == 2 and "q.jsonl:2: category and turns missing" in shown.stderr
    assert run("eval", "none.jsonl", "--out", "x").exit_code == 2
    (tmp_path / "q.jsonl").write_text(json.dumps(QUESTIONS[1]))
    shown = run(*asked)
    assert shown.exit_code == 2 and "none of the 1 questions fits" in shown.stderr and not folder.exists()


def test_spec_benchs_figures_from_the_files_alone(fake, run, asked, folder):
    """What hemingkx/Spec-Bench's speed.py computes, in a few lines of its own, is what the report says."""
    run(*asked)
    report = json.loads(run("eval", "report", str(folder), "--json").stdout)
    groups = {"mt_bench": ["writing"], "translation": ["translation"], "overall": ["writing", "translation"]}
    assert [group["category"] for group in report["tasks"]] == list(groups)
    for group in report["tasks"]:
        base, mine = (
            [q for q in lines(folder / name) if q["category"] in groups[group["category"]]]
            for name in ("plain.jsonl", "eagle_6_3_2.jsonl")
        )
        seconds = [[sum(q["choices"][0]["wall_time"]) for q in file] for file in (base, mine)]
        words = [sum(len(text.split()) - 1 for text in q["choices"][0]["turns"]) for q in base]
        tokens = [sum(q["choices"][0]["new_tokens"]) for q in mine]
        baseline = sum(n / s for n, s in zip(words, seconds[0], strict=True)) / len(base)
        speed = sum(n / s for n, s in zip(tokens, seconds[1], strict=True)) / len(mine)
        lengths = [length for q in mine for length in q["choices"][0]["accept_lengths"]]
        said = group["methods"]["eagle:6,3,2"]["specbench"]
        assert said["tokens_per_second"] == pytest.approx(speed)
        assert said["baseline_tokens_per_second"] == pytest.approx(baseline)
        assert said["speedup"] == pytest.approx(speed / baseline)
        assert said["mean_accepted_tokens"] == pytest.approx(sum(lengths) / len(lengths))


class Page(html.parser.HTMLParser):
    """What a page is made of; fails on whatever it would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag, attrs):
        assert not {"src", "href", "srcset", "xlink:href"} & {name for name, _ in attrs}
        assert tag not in ("script", "link", "iframe")
        self.seen.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)


def test_the_page_stands_alone(fake, run, asked, folder, tmp_path):
    run(*asked)
    shown = run("eval", "report", str(folder), "--html", str(tmp_path / "page.html"))
    assert shown.exit_code == 0 and "All methods" in shown.stdout
    text = (tmp_path / "page.html").read_text()
    assert "prefers-color-scheme: dark" in text and "url(" not in text and "@import" not in text
    page = Page()
    page.feed(text)
    assert page.open == [] and page.seen.count("svg") == 5 and page.seen.count("table") == 5
    tree = text[text.index("A draft tree") :]
    assert "Step 2 of the first answer under eagle:6,3,2" in tree
    assert tree.count("node taken") == 3 and tree.count("node left") == 2 and tree.count("node drawn") == 1
    assert "&lt;5&gt;" in tree and "<5>" not in text, "tokens are text, not markup"


def test_a_run_that_is_not_over_is_reported_as_far_as_it_is(fake, run, asked, folder):
    run(*asked)
    file = folder / "prompt-lookup.jsonl"
    file.write_bytes(file.read_bytes()[:-9])
    shown = run("eval", "report", str(folder))
    assert shown.exit_code == 0 and "prompt-lookup.jsonl ends within a line, which is left out." in shown.stderr
    assert "Left out 1 question that not every method has answered yet." in shown.stderr
    file.unlink()
    shown = run("eval", "report", str(folder))
    assert shown.exit_code == 2 and "has no answers of prompt-lookup yet" in shown.stderr
    assert run("eval", "report", str(folder.parent)).exit_code == 2


def test_compare_finds_where_texts_part(fake, run, asked, folder):
    fake.plain_ids = [5, 6, 8]
    run(*asked, "--temperature", "1", "--seed", "4")
    shown = run("eval", "compare", str(folder / "plain.jsonl"), str(folder / "eagle_6_3_2.jsonl"))
    assert shown.exit_code == 1
    assert shown.stdout.splitlines() == [
        "Question 81, turn 1, token 3: '<8>' (8) in the first, '<7>' (7) in the second; the target's best two are "
        "'<7>' (7) 3.5000 and '<8>' (8) 3.4375, 0.062 apart.",
        "Question 162, turn 1, token 3: '<8>' (8) in the first, '<7>' (7) in the second; the target's best two are "
        "'<7>' (7) 3.5000 and '<8>' (8) 3.4375, 0.062 apart.",
        "0 of 2 questions have identical texts.",
    ]
    ids, sampling = fake.asked_again[0]
    prompt = lines(folder / "plain.jsonl")[0]["choices"][0]["prompt_ids"][0]
    assert ids == [*prompt, 5, 6] and sampling["temperature"] == 1.0 and sampling["seed"] == 4


def test_compare_tells_a_limit_from_a_difference(fake, run, asked, folder, tmp_path):
    run(*asked, "--max-new-tokens", "3")
    fake.plain_ids, fake.words = [5, 6], ("Hello",)
    run(*asked[:-1], str(tmp_path / "other"), "--max-new-tokens", "2")
    files = [str(place / "plain.jsonl") for place in (folder, tmp_path / "other")]
    loads = len(fake.loads)
    for order, which in ((files, "second"), (files[::-1], "first")):
        shown = run("eval", "compare", *order)
        said = f"identical up to token 2, where the {which} was cut (max_new_tokens=2)."
        assert shown.exit_code == 1 and said in shown.stdout and "best two" not in shown.stdout
    assert len(fake.loads) == loads, "nothing to ask the target"


def test_compare_identical_files(fake, run, asked, folder, tmp_path):
    run(*asked)
    loads = len(fake.loads)
    one, other = folder / "plain.jsonl", tmp_path / "copy.jsonl"
    other.write_text(one.read_text().splitlines()[0] + "\n{half")
    shown = run("eval", "compare", str(one), str(other))
    assert shown.exit_code == 0 and shown.stdout == "1 of 1 questions have identical texts.\n"
    assert (
        "copy.jsonl ends in an unfinished line" in shown.stderr
        and "Answered in one file only: 1 more questions." in shown.stderr
    )
    assert len(fake.loads) == loads, "nothing to ask the target"
    other.write_text("")
    assert run("eval", "compare", str(one), str(other)).exit_code == 2
    other.write_text("{}\n")
    shown = run("eval", "compare", str(one), str(other))
    assert shown.exit_code == 2 and "copy.jsonl:1: 'choices' is missing" in shown.stderr


def test_compare_says_how_runs_differ(fake, run, asked, folder, tmp_path):
    run(*asked)
    run(*asked[:-1], str(tmp_path / "other"), "--temperature", "1", "--top-k", "5")
    file = tmp_path / "other" / "plain.jsonl"
    first, *others = lines(file)
    for key, values in first["choices"][0].items():
        if isinstance(values, list):
            del values[3 if key == "accept_lengths" else 1 :]
    file.write_text("".join(json.dumps(line) + "\n" for line in (first, *others)))
    shown = run("eval", "compare", str(folder / "plain.jsonl"), str(file))
    assert (
        "temperature 0.0 in the first and 1.0 in the second, top_k 0 in the first and 5 in the second" in shown.stderr
    )
    assert shown.exit_code == 1 and shown.stdout.splitlines() == [
        "Question 81: 2 turns in the first and 1 in the second, identical as far as both go.",
        "1 of 2 questions have identical texts.",
    ]


def test_heads_of_several_kinds(fake, run, asked):
    assert run(*asked, "--head", "eagle3").exit_code == 0
    assert [head for _, head, _ in fake.loads] == [None, "eagle3"]


@pytest.mark.parametrize("heads, of_eagle", [(("first",), "own"), (("first", "second"), "second")])
def test_a_method_drafts_with_the_head_behind_its_at_and_others_with_the_rest(fake, heads, of_eagle):
    own, *others = (fake.load() for _ in ("own", *heads))
    models = dict(zip(heads, others, strict=True))
    names = {id(model): name for name, model in [*models.items(), ("own", own)]}
    suited = with_models(parse_methods("eagle@first,eagle,eagle@first:6,3,2"), models, own)
    made = {method.name: (method.drafter, method.tree, names[id(method.model)]) for method, _ in suited}
    assert made == {
        "eagle@first": ("eagle", "auto", "first"),
        "eagle": ("eagle", "auto", of_eagle),
        "eagle@first:6,3,2": ("eagle", (6, 3, 2), "first"),
    }


def test_entries_of_the_named_heads_configs(fake, run, asked):
    window = ("--head-config", '{"sliding_window": 512}')
    assert run(*asked, "--head", "eagle3", *window).exit_code == 0
    assert fake.head_configs[-1] == {"sliding_window": 512}
    shown = run(*asked, *window)
    assert shown.exit_code == 2 and "--head-config needs --head" in shown.stderr


@pytest.mark.parametrize(
    "given",
    [("--head", "eagle3", "--head", "hydra"), ("--draft-model", "small"), ("--datastore", "store.safetensors")],
)
def test_what_no_method_takes_is_refused(fake, run, asked, folder, given):
    shown = run(*asked, *given)
    said = f"none of plain, eagle:6,3,2, prompt-lookup drafts with {' '.join(given[-2:])}; leave it out"
    assert shown.exit_code == 2 and said in shown.stderr and not folder.exists()
