"""`eagle-jax quantize`, and `--quantize` of the commands that load a model."""

import json


def test_a_folder_is_written(fake, run):
    shown = run("quantize", "./llama", "./llama-int4", "--to", "int4-128")
    assert shown.exit_code == 0 and fake.rounded == [("./llama", "llama-int4", "int4-128")]
    assert "Wrote llama-int4 as int4-128." in shown.output


def test_what_is_no_kind_is_refused_in_one_sentence(run, tmp_path):
    shown = run("quantize", str(tmp_path), str(tmp_path / "out"), "--to", "int3")
    assert shown.exit_code == 2 and "quantize='int3' is not known; expected" in shown.output
    shown = run("generate", "--quantize", "int3", "Hi.")
    assert shown.exit_code == 2 and "quantize='int3' is not known; expected" in shown.output


def test_the_model_is_loaded_rounded(fake, run):
    assert run("generate", "--quantize", "int8", "Hi.").exit_code == 0
    assert fake.quantized == ["int8"]


def test_a_plan_counts_rounded_weights(run):
    def weights(*options: str) -> int:
        shown = run("plan", "--target", "llama-3.1-8b-instruct", "--mesh", "model:1", "--json", *options)
        return json.loads(shown.stdout)[0]["target"]

    float_bytes, int8, int4 = weights(), weights("--quantize", "int8"), weights("--quantize", "int4/int4")
    table = 2 * 128256 * 4096
    assert abs((int8 - table) / (float_bytes - table) - 0.5) < 0.01
    assert abs((int4 - table) / (float_bytes - table) - (0.25 + 1 / 16)) < 0.01  # scales of four bytes for 32 numbers
