"""Makes the pair's tokenizer: byte-level BPE learned from the training text, every digit a token of its own.

python recipes/gsm8k_pair/make_tokenizer.py --data train.jsonl --out runs/gsm8k_pair/tokenizer
"""

import argparse
import pathlib

import conversations
import tokenizers
import transformers

SPECIAL = ("<|pad|>", "<|bos|>", "<|user|>", "<|assistant|>", "<|end|>")

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


def learn(texts: list[str], vocab_size: int, context: int) -> transformers.PreTrainedTokenizerFast:
    """Learns the merges from `texts` and wraps them with the special tokens and the chat template."""
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
    parser = argparse.ArgumentParser(description="Make the tokenizer of the GSM8K pair.")
    parser.add_argument("--data", type=pathlib.Path, required=True, help="train.jsonl of openai/grade-school-math")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder to write")
    parser.add_argument("--vocab-size", type=int, default=2048, help="tokens in all, specials included")
    parser.add_argument("--context", type=int, default=1024, help="longest sequence of the model, in tokens")
    args = parser.parse_args()
    texts = [message["content"] for chat in conversations.read(args.data) for message in chat]
    tokenizer = learn(texts, args.vocab_size, args.context)
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(args.out)
    print(f"{len(tokenizer)} tokens, {args.out}")


if __name__ == "__main__":
    main()
