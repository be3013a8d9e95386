"""One configuration: from YAML and assignments, with every mistake named."""

import dataclasses
import pathlib

import pytest

from eagle_jax.checks import differences
from eagle_jax.training.config import read_config
from eagle_jax.training.objective import DFLASH, DFLASH2, DSPARK, EAGLE3, Objective

TEXT = """
out: runs/a
steps: 100
data: {train: chats.jsonl, length: 64}
optimizer: {rate: 3e-4, warmup: 5}
"""


@pytest.fixture
def path(tmp_path) -> pathlib.Path:
    path = tmp_path / "train.yaml"
    path.write_text(TEXT)
    return path


def test_a_file_with_assignments_over_it(path):
    config = read_config(
        path, ["optimizer.betas=[0.8, 0.9]", "head.intermediate_size=48", "objective.steps=2", "seed=7"]
    )
    assert config.data.train == ("chats.jsonl",) and config.data.length == 64
    assert config.optimizer.rate == 3e-4 and config.optimizer.betas == (0.8, 0.9) and config.optimizer.warmup == 5
    assert config.head.intermediate_size == 48 and config.objective.steps == 2 and config.seed == 7


def test_a_method_brings_its_published_defaults(path):
    config = read_config(path, ["head.method=eagle3", "steps=20000"])
    assert config.objective == EAGLE3
    assert (config.optimizer.clip, config.optimizer.weight_decay, config.optimizer.betas) == ("norm", 0.0, (0.9, 0.95))
    assert config.optimizer.rate == 3e-4 and config.optimizer.warmup == 5, "what the file says counts"
    config = read_config(path, ["head.method=eagle3", "objective.steps=3", "optimizer.clip=none"])
    assert config.objective == dataclasses.replace(EAGLE3, steps=3) and config.optimizer.clip == "none"


@pytest.mark.parametrize(("method", "published"), [("dflash", DFLASH), ("dspark", DSPARK), ("dflash2", DFLASH2)])
def test_methods_of_blocks_have_their_published_settings(path, method: str, published: Objective):
    config = read_config(path, [f"head.method={method}", "head.mask_token_id=3"])
    assert config.objective == published
    assert (config.optimizer.decay, config.optimizer.clip, config.optimizer.clip_at) == ("cosine", "norm", 1.0)
    mixed = DSPARK.distribution_loss, DSPARK.distribution_weight, DSPARK.text_weight, DSPARK.confidence_weight
    assert mixed == ("tv", 1.8, 0.1, 1.0), "0.9 of the L1 distance, twice the total variation, and 0.1 of the text"
    with pytest.raises(
        ValueError, match="text_weight=0.1 with distribution_loss=text, the same loss; expected objective.text_weight=0"
    ):
        read_config(path, ["head.method=dspark", "head.mask_token_id=3", "objective.distribution_loss=text"])


def test_the_resolved_configuration_reads_as_itself(path, tmp_path):
    config = read_config(path, ["evaluation.questions=q.jsonl", "dtype=float32", "head.layers=2", "max_minutes=1.5"])
    (tmp_path / "resolved.yaml").write_text(config.as_yaml())
    assert read_config(tmp_path / "resolved.yaml") == config
    assert "weight_decay: 0.01" in config.as_yaml(), "defaults are written down too"


def test_two_starts_of_one_run_may_differ_where_nothing_is_computed(path):
    config = read_config(path)
    free = ["checkpoint.every=3", "max_minutes=2", "data.train=moved.jsonl", "mesh=data:2", "features.folder=here"]

    def compared(*assignments: str) -> str:
        return differences(config.by_name(), read_config(path, assignments).by_name(), config.fixed())

    assert not compared(*free)
    assert compared("features.dtype=float16") == "features.dtype was not set and is float16 now"
    assert compared("seed=1", "optimizer.rate=1e-3") == (
        "optimizer.rate was 0.0003 and is 0.001 now; seed was 0 and is 1 now"
    )


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("optimzer.rate=1", "optimzer is not known; did you mean optimizer?"),
        ("optimizer.momentum=1", "optimizer.momentum is not known; expected one of name, rate, betas"),
        ("steps=many", "steps='many'; expected a whole number"),
        ("steps=true", "steps=True; expected a whole number"),
        ("steps=0", "steps=0; expected 1 or more"),
        ("steps=4", "optimizer.warmup=5 is not below steps=4"),
        ("optimizer.rate=.nan", "optimizer.rate=nan; expected a finite number"),
        ("optimizer.rate=0", "rate=0.0 and clip_at=0.5 must be above 0"),
        ("optimizer.betas=[0.9]", "optimizer.betas=[0.9]; expected 2 values"),
        ("optimizer.betas=[0.9, 1]", "expected two numbers from 0 up to 1"),
        ("optimizer.final=2", "final=2.0 must be a share"),
        ("optimizer.name=sgd", "optimizer.name='sgd'; expected adamw or muon"),
        ("optimizer=3", "optimizer=3; expected settings inside it"),
        ("data.train=[]", "data.train names no file"),
        ("data.train=3", "data.train=3; expected a list"),
        ("data.held_out_share=1", "data.held_out_share=1.0; expected a share between 0 and 1"),
        ("data.pack=1", "data.pack=1; expected true or false"),
        ("out=3", "out=3; expected text"),
        ("max_minutes=0", "max_minutes=0.0; expected more than 0"),
        ("objective.steps=0", "objective.steps=0; expected at least one draft step"),
        ("objective.decay=0", "objective.decay=0.0; expected more than 0"),
        ("objective.noise=-1", "objective.noise=-1.0; expected 0 or more"),
        ("objective.distribution_weight=-1", "objective.distribution_weight=-1.0; expected 0 or more"),
        (
            "objective.distribution_loss=kl",
            "objective.distribution_loss='kl'; expected cross_entropy or text or tv or acceptance or hybrid",
        ),
        ("objective.text_weight=-1", "objective.text_weight=-1.0; expected 0 or more"),
        ("objective.position_weights=d_pace", "distribution_loss=cross_entropy; expected text"),
        (
            "objective.anchors=32",
            "objective.anchors=32 with method eagle1; expected peagle or dflash or dspark or dflash2",
        ),
        ("objective.selector_weight=2", "objective.selector_weight=2.0 with method eagle1; expected dflash2, since no"),
        ("objective.eta=-1", "objective.eta=-1.0; expected 0 or more"),
        ("evaluation.temperature=-1", "evaluation.temperature=-1.0; expected 0 (greedy) or more"),
        ("seed=-1", "seed=-1; expected a whole number from 0 to 9223372036854775807"),
        ("seed=9223372036854775808", "expected a whole number from 0 to 9223372036854775807"),
        (
            "head.taps=[0, 3]",
            "head.taps with method eagle1; expected eagle3 or peagle or dflash or dspark or dflash2",
        ),
        ("head.fc_norm=true", "head.fc_norm with method eagle1; expected eagle3"),
        ("head.norm_output=true", "head.norm_output with method eagle1; expected eagle3"),
        ("steps.x=0", "steps has no settings inside"),
        ("seed", "expected key=value, such as"),
        ("seed=[", "is not valid YAML"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(path, assignment, message):
    with pytest.raises(ValueError) as caught:
        read_config(path, [assignment])
    assert message in str(caught.value) and str(caught.value).startswith(f"{path}: ")


def test_a_block_learns_all_that_it_drafts(path):
    of_blocks = ["head.method=dspark", "head.mask_token_id=3"]
    assert read_config(path, of_blocks).objective.steps == 7
    assert read_config(path, [*of_blocks, "head.block_size=16"]).objective.steps == 16
    dflash = ["head.method=dflash", "head.mask_token_id=3", "head.block_size=8"]
    assert read_config(path, dflash).objective.steps == 7
    with pytest.raises(ValueError, match="objective.steps=6 and head.block_size=8; expected 7, one for each position"):
        read_config(path, [*dflash, "objective.steps=6"])
    assert read_config(path, [*dflash, "objective.steps=6", "head.start=earlier"]).objective.steps == 6


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["head.method=eagle3", "head.bias=false"], "head.bias=False with method eagle3; expected eagle1"),
        (["head.method=medusa", "head.intermediate_size=8"], "head.intermediate_size=8 with method medusa; expected"),
        (["head.method=hydra", "head.num_key_value_heads=1"], "or hydra with head.prefix"),
        (
            ["head.method=dflash", "head.mask_token_id=3", "objective.feature_weight=1"],
            "objective.feature_weight=1.0 with method dflash; expected eagle1 or eagle3",
        ),
    ],
)
def test_what_a_method_does_not_read_is_refused(path, assignments, message):
    with pytest.raises(ValueError) as caught:
        read_config(path, assignments)
    assert message in str(caught.value)


def test_a_wrong_file_says_so(tmp_path):
    path = tmp_path / "train.yaml"
    for text, message in (
        ("3", "has no settings"),
        ("out: a\nsteps: 2", "data is missing; give it a value"),
        ("out: a\nout: b", "duplicate key 'out'"),
        ("out: [", "is not valid YAML"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_config(path)
    with pytest.raises(FileNotFoundError):
        read_config(tmp_path / "none.yaml")


def test_paths_may_begin_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/ann")
    (tmp_path / "train.yaml").write_text(
        "out: ~/run\nsteps: 100\ndata: {train: [~/a.jsonl, b.jsonl], chat_template: ~/t.jinja}\n"
        "features: {folder: ~/f}\noptimizer: {warmup: 1}\n"
    )
    read = read_config(tmp_path / "train.yaml")
    assert (read.out, read.features.folder, read.data.chat_template) == (
        "/home/ann/run",
        "/home/ann/f",
        "/home/ann/t.jinja",
    )
    assert read.data.train == ("/home/ann/a.jsonl", "b.jsonl")
