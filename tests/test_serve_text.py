"""The serving example's text, keys and settings."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast

from composer.engines.transformers_models import random_model
from composer.errors import ConfigError
from tests.serve_tools import EXAMPLES, settings

from serving.keys import Keys, salt_of  # isort: skip  (found by serve_tools)
from serving.service import load  # isort: skip
from serving.text import Answer, ByteTokenizer  # isort: skip


def pieces(ids, stop=()):
    answer, said = Answer(ByteTokenizer(), list(stop)), []
    for token in ids:
        if not answer.stopped:
            said.append(answer.push(token))
    return [*said, answer.end()]


@given(st.text())
def test_pieces_make_up_the_text_and_no_character_is_cut(text):
    said = pieces(text.encode())
    assert "".join(said) == text
    assert not any("\ufffd" in piece for piece in said if "\ufffd" not in text)


@given(st.lists(st.integers(0, 256)))
def test_whatever_the_tokens_are_nothing_is_lost(ids):
    assert "".join(pieces(ids)) == ByteTokenizer().decode(ids)


@given(st.text("ab "), st.lists(st.text("ab ", min_size=1), min_size=1))
def test_an_answer_ends_before_the_first_stop_text(text, stop):
    ends = [text.index(each) + len(each) for each in stop if each in text]
    # the stop text that is whole first ends it, before the first of those that are there by then
    read = text[: min(ends, default=len(text))]
    expected = read[: min((read.index(each) for each in stop if each in read), default=len(read))]
    assert "".join(pieces(text.encode(), stop)) == expected


def test_a_salt_is_the_keys_alone_and_always_the_same():
    assert salt_of("sk-1") == salt_of("sk-1") != salt_of("sk-2")
    assert "sk-1" not in salt_of("sk-1")
    keys = Keys(None)
    assert keys.salt(None) is keys.salt("Basic x") is keys.salt("Bearer ") is None
    assert keys.salt("bearer  sk-1") == salt_of("sk-1")


def test_only_known_keys_may_ask_where_there_are_some(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# one a line\nsk-1\n\n  sk-2 \n")
    keys = Keys(str(file))
    assert [keys.salt(f"Bearer {key}") for key in ("sk-1", "sk-2")] == [
        salt_of("sk-1"),
        salt_of("sk-2"),
    ]
    for wrong in (None, "Bearer sk-3", "sk-1", "Bearer # one a line"):
        with pytest.raises(PermissionError):
            keys.salt(wrong)


@pytest.mark.parametrize(("text", "says"), [(None, "No such file"), ("\n#\n", "holds no key")])
def test_a_file_of_no_keys_is_an_error(tmp_path, text, says):
    if text is not None:
        (tmp_path / "keys").write_text(text)
    with pytest.raises(ConfigError, match=says):
        Keys(str(tmp_path / "keys"))


def test_the_presets_lie_below_a_key_of_the_launchers_own():
    ours = settings("store=file", "cache.backend.path=/kv", "kvpool/policy@cache.policy=write_back")
    assert (ours.cache.backend["name"], ours.cache.backend["path"]) == ("file", "/kv")
    assert ours.cache.policy.name.value == "write_back"
    other = settings("kvpool@cache=llama3_1_8b").cache
    assert (other.checkpoint_tokens, other.model.name) == (256, "meta-llama/Llama-3.1-8B")
    assert settings().cache.backend["shared"] == "kvpool-serve"


def test_all_that_makes_no_sense_is_said_at_once():
    with pytest.raises(ConfigError) as caught:
        settings("server.workers=0", "limits.running=0", "limits.new_tokens=-1")
    keys = [problem.key for problem in caught.value.problems]
    assert keys == ["server.workers", "limits.new_tokens", "limits.running"]


@pytest.fixture
def folder(tmp_path):
    """A model with a tokenizer and a template of its own: a token is a character."""
    letters = {letter: number for number, letter in enumerate("</>abcdefghijklmnopqrstuvwxyz :\n")}
    tokenizer = Tokenizer(WordLevel({**letters, "<s>": 60, "</s>": 61, "?": 62}, unk_token="?"))
    tokenizer.pre_tokenizer = Split("", "isolated")
    tokenizer.decoder = Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="?")
    fast.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<bot>"
    fast.save_pretrained(tmp_path)
    fields = {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 16, "vocab_size": 63}
    model = random_model({**fields, "num_attention_heads": 1, "intermediate_size": 16})
    model.generation_config.eos_token_id = [61, 0]
    model.save_pretrained(tmp_path)
    return tmp_path


def test_a_folder_brings_its_tokenizer_and_its_template(folder):
    given = settings(f"model.path={folder}", "server.port=1").model
    model, tokenizer, name = load(given)
    assert (model.config.hidden_size, name) == (16, folder.name)
    assert tokenizer.stop_ids == {61, 0}
    assert tokenizer.decode(tokenizer.encode("a page")) == "a page"
    chat = tokenizer.encode_chat([{"role": "user", "content": "hi"}])
    assert tokenizer.decode(chat) == "<user>hi<bot>"


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("model.path=/nowhere", "model.path: no tokenizer can be loaded from '/nowhere'"),
        ("model.config.model_type=x", "model.config: its fields are of no model"),
    ],
)
def test_a_model_that_is_not_there_is_an_error(setting, says):
    with pytest.raises(ConfigError, match=says):
        load(settings(setting).model)


def test_help_helps():
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "serve.py"), "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("Usage: python examples/serve.py", "model.path=", "server.workers=", "/metrics"):
        assert word in done.stdout
