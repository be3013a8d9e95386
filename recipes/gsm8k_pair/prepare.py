"""Prepares GSM8K for the shipped pair: conversations, split in two, and a tokenizer learned from them.

    python recipes/gsm8k_pair/prepare.py --data train.jsonl --out runs/gsm8k_pair

writes `training.jsonl`, `held_out.jsonl` and the folder `tokenizer` (byte-level BPE, every digit a token of its own).
"""

import argparse
import json
import pathlib
import random
import re

import tokenizers
import transformers

Conversation = list[dict[str, str]]

CALCULATION = re.compile(r"<<[^>]*>>")
FINAL = re.compile(r"\n?####\s*(.+?)\s*$")
SPECIAL = ("<|pad|>", "<|bos|>", "<|user|>", "<|assistant|>", "<|end|>")
VOCAB_SIZE, CONTEXT = 2048, 1024
HELD_OUT = 200

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}"
    "{{ '<|user|>' + message['content'] | trim + '<|end|>' }}"
    "{% elif message['role'] == 'assistant' %}"
    "{{ '<|assistant|>' }}{% generation %}{{ message['content'] | trim + '<|end|>' }}{% endgeneration %}"
    "{% else %}"
    "{{ raise_exception('This model knows the roles user and assistant, not ' + message['role']) }}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def read(path: pathlib.Path) -> list[Conversation]:
    """Reads `train.jsonl` of openai/grade-school-math, a problem and its worked answer a line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [conversation(**json.loads(line)) for line in lines if line.strip()]


def conversation(question: str, answer: str) -> Conversation:
    """Two messages of text that a person would write.

    Calculator marks (`<<48/2=24>>`) are dropped, and the last line `#### 72` becomes `The answer is 72.`
    """
    answer = CALCULATION.sub("", answer).strip()
    answer = FINAL.sub(r"\nThe answer is \1.", answer)
    return [{"role": "user", "content": question.strip()}, {"role": "assistant", "content": answer}]


def split(conversations: list[Conversation], held_out: int) -> tuple[list[Conversation], list[Conversation]]:
    """Shuffles with a fixed seed and cuts: (training, held out)."""
    if not 0 < held_out < len(conversations):
        raise SystemExit(f"{len(conversations)} conversations; expected more than the {held_out} that are held out")
    shuffled = list(conversations)
    random.Random(0).shuffle(shuffled)
    return shuffled[held_out:], shuffled[:held_out]


def learn(texts: list[str], vocab_size: int, context: int) -> transformers.PreTrainedTokenizerFast:
    """Learns the merges from `texts` and adds the special tokens and the chat template."""
    core = tokenizers.Tokenizer(tokenizers.models.BPE())
    core.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    core.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<|pad|>",
        bos_token="<|bos|>",
        eos_token="<|end|>",
        additional_special_tokens=["<|user|>", "<|assistant|>"],
        chat_template=CHAT_TEMPLATE,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Prepare GSM8K for the shipped pair.")
    parser.add_argument("--data", type=pathlib.Path, required=True, help="train.jsonl of openai/grade-school-math")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder to write")
    args = parser.parse_args()
    conversations = read(args.data)
    args.out.mkdir(parents=True, exist_ok=True)
    for name, part in zip(("training", "held_out"), split(conversations, HELD_OUT), strict=True):
        lines = [json.dumps({"messages": chat}) + "\n" for chat in part]
        (args.out / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    texts = [message["content"] for chat in conversations for message in chat]
    learn(texts, VOCAB_SIZE, CONTEXT).save_pretrained(args.out / "tokenizer")
    print(f"{len(conversations)} conversations and a tokenizer of {VOCAB_SIZE} tokens in {args.out}")


if __name__ == "__main__":
    main()
