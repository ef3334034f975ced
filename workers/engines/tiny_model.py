"""Makes a small real model in a folder: a random-weight Llama with a tokenizer and a chat template, about 14 MB.

Runs under the engine environment's interpreter (torch, transformers, tokenizers), from the repository's root:
`python -m workers.engines.tiny_model DIR`. The same interpreter version always makes the same model: the weights come from
a seed, the tokenizer from Python's own language reference. The text it writes is noise, but noise that depends on every
token of the prompt, so that a lost or mixed KV block changes it.
"""

from __future__ import annotations

import argparse
import os
import pydoc_data.topics
import shutil
import tempfile
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SEED = 20261
VOCABULARY = 2048
CONTEXT = 2048
BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"

QUERY_KEY_GAIN = 2.0
"""Attention scores of random weights are near 0, so that each head averages all tokens and the prompt washes out. This
makes heads pick single tokens."""

CHAT_TEMPLATE = (
    "{{ '<|begin|>' }}{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def make(folder: Path) -> bool:
    """The model in `folder`, made beside it and moved there whole. False if it was there already. Raises OSError."""
    if (folder / "config.json").is_file():
        return False
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_torn(folder)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _write(work)
        work.chmod(0o755)
        work.rename(folder)
    except OSError:
        shutil.rmtree(work, ignore_errors=True)
        if (folder / "config.json").is_file():  # another maker was first, and made the same
            return False
        raise
    return True


def _remove_torn(folder: Path) -> None:
    """What makers that were killed left behind; one that still works is never an hour old."""
    for torn in folder.parent.glob(f".{folder.name}-*"):
        if time.time() - torn.stat().st_mtime > 3600:
            shutil.rmtree(torn, ignore_errors=True)


def _write(folder: Path) -> None:
    tokenizer = _tokenizer()
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    model = LlamaForCausalLM(config).to(torch.float32)
    _fill(model)
    model.save_pretrained(folder, safe_serialization=True)
    for file in folder.iterdir():
        file.chmod(0o644)


def _tokenizer() -> PreTrainedTokenizerFast:
    text = [topic for _, topic in sorted(pydoc_data.topics.topics.items())]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BEGIN, END, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(text, trainer)
    assert bpe.get_vocab_size() == VOCABULARY, "Python's language reference was too short for the vocabulary"
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def _fill(model: LlamaForCausalLM) -> None:
    """Every matrix N(0, 1/fan-in) in order of name, so that the residual stream keeps its scale; norms stay 1."""
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if weight.dim() != 2:
                continue
            spread = 1.0 if "embed_tokens" in name else weight.shape[1] ** -0.5
            if "q_proj" in name or "k_proj" in name:
                spread *= QUERY_KEY_GAIN
            weight.copy_(torch.randn(weight.shape, generator=generator) * spread)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve()
    print(f"{folder}: {'made' if make(folder) else 'was there already'}")  # noqa: T201  # a command's answer


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
