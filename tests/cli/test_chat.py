from speller import make_tokenizer

from eagle_jax.cli import chat

HI = {"role": "user", "content": "hi"}
ANSWER = {"role": "assistant", "content": "Hello [b]world[/b]."}


def test_the_model_sees_the_whole_conversation(fake, run):
    shown = run("chat", "--system", "Be brief.", "--temperature", "1", input="hi\nand then?\n/quit\nnever asked\n")
    assert shown.exit_code == 0
    assert shown.stdout.count("Hello [b]world[/b].\n") == 2
    first, second = (prompt for prompt, _ in fake.requests)
    system = {"role": "system", "content": "Be brief."}
    assert first == [system, HI]
    assert second == [system, HI, ANSWER, {"role": "user", "content": "and then?"}]
    assert fake.requests[0][1]["temperature"] == 1.0


def test_one_engine_answers_all_turns_and_keeps_what_it_read(fake, run):
    run("chat", "--drafter", "none", "--max-tokens", "300", "--prefix-cache-bytes", "7", input="hi\nhi\n")
    how = dict(rows=1, steps=1, max_tokens=300, prefix_cache_bytes=7, drafter="none", tree="auto")
    assert fake.engines == [how, "closed"] and len(fake.requests) == 2


def test_an_answer_is_as_long_as_there_is_room(fake, run):
    fake.room = 9
    run("chat", input="hi\n")
    run("chat", "--max-new-tokens", "3", input="hi\n")
    assert [request["max_new_tokens"] for _, request in fake.requests] == [9, 3]


def test_clear_forgets_all_but_the_system_message(fake, run):
    run("chat", "--system", "Be brief.", input="hi\n/clear\nhi\n")
    assert fake.requests[1][0] == [{"role": "system", "content": "Be brief."}, HI]


def test_a_system_message_that_has_no_place_is_known_before_anybody_types(run):
    shown = run("chat", "--system", "Be brief.", input="hi\n")
    assert shown.exit_code == 2 and "the system message does not fit the model's chat template" in shown.stderr


def test_without_a_template_there_is_no_conversation(fake, run):
    fake.template = None
    shown = run("chat", input="hi\n")
    assert shown.exit_code == 2 and "a conversation needs a chat template, and the model's tokenizer" in shown.stderr
    assert fake.requests == []


def test_a_pipe_carries_only_the_text(fake, run):
    assert run("chat", input="hi\n\n").stdout == "Hello [b]world[/b].\n"


def test_stats_and_help(fake, run):
    shown = run("chat", input="/stats\n/help\nhi\nhi\n/stats\n/quit\n")
    assert "no answers yet" in shown.stdout
    assert "/clear   forget the conversation" in shown.stdout
    assert "2 answers, 6 tokens, 2 steps (3.00 tokens a step)" in shown.stdout


def test_an_unknown_command_is_not_a_message(fake, run):
    shown = run("chat", input="/clera\n")
    assert shown.exit_code == 0 and fake.requests == []
    assert "/clera is not a command; /help lists them" in shown.stderr


def test_empty_lines_ask_nothing(fake, run):
    assert run("chat", input="\n   \n").exit_code == 0
    assert fake.requests == []


def test_ctrl_c_keeps_what_was_written(fake, run):
    fake.error = KeyboardInterrupt()
    shown = run("chat", input="hi\n/clear\n")
    assert shown.exit_code == 0
    assert "Hello [interrupted]" in shown.stdout
    assert fake.engines[1:] == ["cancelled", "closed"]


def test_ctrl_c_before_anything_is_asked(fake, run, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(chat, "AnswerWriter", interrupted)
    shown = run("chat", input="hi\n")
    assert shown.exit_code == 0 and "[interrupted]" in shown.stdout and fake.requests == []


def test_a_refused_message_leaves_the_conversation_as_it_was(fake, run):
    fake.error, fake.words = ValueError("the prompt has 600 tokens; the context holds 512"), ("",)
    shown = run("chat", input="hi\nhi\n")
    assert shown.exit_code == 0
    assert shown.stderr.count("the prompt has 600 tokens; the context holds 512\n") == 2, "there is nothing to /clear"
    assert [prompt for prompt, _ in fake.requests] == [[HI], [HI]]


def test_reasoning_is_not_part_of_the_text(fake, run):
    fake.tokenizer = make_tokenizer()
    fake.tokenizer.chat_template = "{{ messages }} </think>"
    fake.words = ("<think>Hm, [b]7[/b] :smile:?", "</think>", "\n\nIt is 7.")
    shown = run("chat", "--no-thinking", input="hi\nhi\n")
    assert shown.stdout == "It is 7.\n" * 2 and "Hm, [b]7[/b] :smile:?" in shown.stderr
    answer = {"role": "assistant", "content": "It is 7.", "reasoning_content": "Hm, [b]7[/b] :smile:?"}
    (first, _), (second, _) = fake.requests
    assert first.template == {"enable_thinking": False} and second.messages == [HI, answer, HI]
    assert run("generate", "hi").stdout == "It is 7.\n"
    assert run("generate", "--raw", "hi").stdout == "".join(fake.words) + "\n"
