import json

import pytest

from eagle_jax.cli.parsing import parse_tree


def test_streams_the_text_to_stdout_and_statistics_to_stderr(fake, run):
    shown = run("generate", "What is 2 + 2?")
    assert shown.exit_code == 0
    assert shown.stdout == "Hello [b]world[/b].\n"  # as it is, not as markup
    assert "3 tokens; 1 step, 3.00 tokens each; the first after 10 ms; 150 tokens/s; ended by itself" in shown.stderr
    assert fake.requests[0][0] == [{"role": "user", "content": "What is 2 + 2?"}]


def test_every_option_reaches_the_api(fake, run):
    options = "-t T --head H --dtype float32 --raw -n 5 --temperature 0.5 --top-k 3 --top-p 0.9 --min-p 0.1 --seed 7"
    shown = run(
        "generate", "hi", *options.split(), "--stop", "a", "--stop", "b c", "--drafter", "eagle", "--tree", "9,3,2"
    )
    assert shown.exit_code == 0
    assert fake.loads == [("T", "H", "float32")]
    assert fake.requests == [
        (
            "hi",
            dict(
                max_new_tokens=5,
                temperature=0.5,
                top_k=3,
                top_p=0.9,
                min_p=0.1,
                seed=7,
                stop=["a", "b c"],
                drafter="eagle",
                tree=(9, 3, 2),
            ),
        )
    ]


def test_the_prompt_comes_from_a_pipe_or_a_file(fake, run, tmp_path):
    (tmp_path / "p.txt").write_bytes(b"\xef\xbb\xbffrom a file")  # as Windows' editors write UTF-8
    run("generate", "--raw", input="\ufefffrom a pipe\n")
    run("generate", "-", "--raw", input="from a dash\n")
    run("generate", "--raw", "--file", str(tmp_path / "p.txt"))
    assert [prompt for prompt, _ in fake.requests] == ["from a pipe", "from a dash", "from a file"]


def test_a_model_without_template_gets_the_prompt_as_it_is(fake, run):
    fake.template = None
    run("generate", "hi")
    run("generate", "--chat", "hi")
    assert [prompt for prompt, _ in fake.requests] == ["hi", [{"role": "user", "content": "hi"}]]


def test_json_is_one_object_a_line(fake, run):
    shown = run("generate", "hi", "--json", "--num-samples", "2")
    first, second = (json.loads(line) for line in shown.stdout.splitlines())
    assert first == second
    assert first["text"] == "Hello [b]world[/b]." and first["token_ids"] == [5, 6, 7]
    assert first["stats"]["mean_accepted_length"] == 3.0


def test_an_answer_of_one_token_has_no_speed(fake, run):
    fake.empty = True
    assert json.loads(run("generate", "hi", "--json").stdout)["stats"]["tokens_per_second"] is None
    assert run("generate", "hi").stderr == "1 token; the first after 10 ms; ended by the length limit\n"


def test_several_samples_are_numbered(fake, run):
    shown = run("generate", "hi", "--num-samples", "2")
    assert "Answer 1 of 2\nHello [b]world[/b].\n" in shown.stdout and "Answer 2 of 2\n" in shown.stdout


@pytest.mark.parametrize(
    "text, tree",
    [
        ("auto", "auto"),
        ("eagle1", "eagle1"),
        ("60,7,10", (60, 7, 10)),
        ("60,7,10,59", (60, 7, 10, 59)),
        ("6,0.8", (6, 0.8)),
        ("6,0", (6, 0.0)),
        ("8,5,2,0.1", (8, 5, 2, 0.1)),
        ("8,5,2,1e-3", (8, 5, 2, 0.001)),
        ("8,5,2,0", (8, 5, 2, 0.0)),
        ("-1,0,0", [-1, 0, 0]),
        ("-1, 0, 0, 1", [-1, 0, 0, 1]),
    ],
)
def test_trees(text, tree):
    assert parse_tree(text) == tree


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["hi", "--tree", "7,3"], "--tree '7,3' is not a tree; expected auto, published, eagle1"),
        (["hi", "--tree", "60,7,10,59,1"], "--tree '60,7,10,59,1' is not a tree"),
        (["hi", "--tree", "8,5,0.1"], "--tree '8,5,0.1' is not a tree"),
        (["hi", "--tree", "wide"], "--tree 'wide' is not a tree"),
        (["hi", "--file", "x"], "a prompt and --file were both given"),
        (["--file", "no/such/file"], "no/such/file: no such file or directory"),
        (["  "], "the prompt is empty"),
        ([], "the prompt is empty"),
    ],
)
def test_misuse_is_one_sentence(fake, run, arguments, sentence):
    shown = run("generate", *arguments, input="")
    assert shown.exit_code == 2
    assert shown.stdout == ""
    assert shown.stderr.startswith(f"eagle-jax: {sentence}") and shown.stderr.count("\n") == 1
    assert fake.requests == [] and fake.loads == []


def test_a_file_that_is_not_text(fake, run, tmp_path):
    (tmp_path / "p").write_bytes(b"\xff\xfe\xfa")
    shown = run("generate", "--file", str(tmp_path / "p"))
    assert shown.exit_code == 2 and "is not UTF-8 text" in shown.stderr


@pytest.mark.parametrize(
    "error", [ValueError("temperature is -1;\n expected 0 or more"), TypeError("temperature is -1; expected 0 or more")]
)
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_what_the_api_refuses_is_one_sentence(fake, run, error, form):
    fake.error, fake.words = error, ("",)
    shown = run("generate", "hi", *form)
    assert (shown.exit_code, shown.stderr) == (2, "eagle-jax: temperature is -1; expected 0 or more\n")


def test_the_traceback_can_be_asked_for(fake, run, monkeypatch):
    monkeypatch.setenv("EAGLE_JAX_TRACEBACK", "1")
    fake.error = ValueError("no")
    assert run("generate", "hi").exception is fake.error


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["generate", "hi", "--temprature", "1"], ["No such option: --temprature", "--temperature"]),
        (["generate", "hi", "there"], ["unexpected extra argument"]),
        (["generate", "hi", "--temperature", "warm"], ["Invalid value for '--temperature'"]),
        (["generate", "hi", "--drafter", "oracle"], ["'--drafter'", "eagle"]),
        (["generate", "hi", "--dtype", "int4"], ["'--dtype'", "bfloat16"]),
        (["generat"], ["No such command 'generat'"]),
    ],
)
def test_unknown_options_are_named(fake, run, arguments, words):
    shown = run(*arguments)
    assert shown.exit_code == 2
    assert all(word in shown.stderr for word in words), shown.stderr


def test_ctrl_c_leaves_quietly(fake, run):
    fake.error = KeyboardInterrupt()
    shown = run("generate", "hi")
    assert shown.exit_code == 130
    assert shown.stdout == "Hello" and shown.stderr == ""


def test_entries_of_the_targets_config(fake, run):
    assert run("generate", "--target-config", '{"rope_theta": 1e4}', "Hi.").exit_code == 0
    assert run("generate", "Hi.").exit_code == 0
    assert fake.target_configs == [{"rope_theta": 10000.0}, None]
    shown = run("generate", "--target-config", "[1]", "Hi.")
    assert shown.exit_code == 2 and "--target-config [1] is not a JSON object" in shown.stderr


def test_entries_of_the_heads_config(fake, run):
    assert run("generate", "--head-config", '{"sliding_window": 512}', "Hi.").exit_code == 0
    assert run("chat", "--head-config", '{"sliding_window": null}', input="").exit_code == 0
    assert fake.head_configs == [{"sliding_window": 512}, {"sliding_window": None}]
    shown = run("generate", "--head-config", "512", "Hi.")
    assert shown.exit_code == 2 and "--head-config 512 is not a JSON object" in shown.stderr


def test_options_that_depend_on_the_text(fake, run):
    more = ["--set", "repetition_penalty=1.1", "--set", 'bad_words=["very"]', "--set", 'logit_bias={"3": 2}']
    assert run("generate", "--raw", "hi", *more).exit_code == 0
    request = fake.requests[0][1]
    assert request["repetition_penalty"] == 1.1 and request["bad_words"] == ["very"]
    assert request["logit_bias"] == {"3": 2}


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("temperature=1", "expected NAME=VALUE with one of the names repetition_penalty"),
        ("min_tokens", "expected NAME=VALUE"),
        ("min_tokens=few", "the value is not valid JSON"),
    ],
)
def test_what_is_no_such_option(fake, run, setting, sentence):
    shown = run("generate", "hi", "--set", setting)
    assert shown.exit_code == 2 and sentence in " ".join(shown.stderr.split()) and not fake.requests


def test_what_the_model_recommends_gives_way_to_what_is_typed(fake, run):
    fake.generation = {"temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.05}
    assert run("generate", "--raw", "hi").exit_code == 0
    assert run("generate", "--raw", "hi", "--generation-config", "--top-p", "0.5").exit_code == 0
    plain, recommended = (request for _, request in fake.requests)
    assert (plain["temperature"], plain["top_p"], plain.get("repetition_penalty")) == (0.0, 1.0, None)
    assert (recommended["temperature"], recommended["top_p"], recommended["repetition_penalty"]) == (0.6, 0.5, 1.05)
