"""`eagle-jax regenerate` passes on what was asked and says what became of it."""


def test_it_passes_on_the_request_and_counts(fake, run):
    sampling = ("--temperature", "1", "--top-p", "0.9")
    shown = run("regenerate", "chats.jsonl", "--out", "o.jsonl", *sampling, "--limit", "7", "--mesh", "data:2")
    assert shown.exit_code == 0 and fake.meshes == ["data:2"]
    ((data, request),) = fake.requests
    assert data == "chats.jsonl" and request["temperature"] == 1.0 and request["top_p"] == 0.9 and request["limit"] == 7
    said = "5 conversations answered, 2 answered before, 1 cut at 1024 tokens: o.jsonl\n"
    assert shown.stdout == said


def test_answers_of_another_target_are_told_apart(fake, run):
    run("regenerate", "chats.jsonl", "--out", "o.jsonl", "--target", "t", "--dtype", "bfloat16", "--quantize", "int8")
    ((_, request),) = fake.requests
    assert request["made_with"] == {"target": "t", "dtype": "float32", "quantize": "int8"}, "the stand-in's own dtype"


def test_entries_of_the_targets_config_are_noted(fake, run):
    run("regenerate", "chats.jsonl", "--out", "o.jsonl", "--target-config", '{"rope_theta": 7}')
    assert fake.target_configs == [{"rope_theta": 7}]
    assert fake.requests[0][1]["made_with"]["target_config"] == '{"rope_theta": 7}'


def test_what_drafts_may_be_rounded_in_between(fake, run):
    run("regenerate", "chats.jsonl", "--out", "o.jsonl", "--quantize", "draft:int8")
    assert fake.requests[0][1]["made_with"]["quantize"] is None


def test_the_output_must_be_named(fake, run):
    assert run("regenerate", "chats.jsonl").exit_code == 2
