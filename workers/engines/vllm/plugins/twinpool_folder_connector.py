"""KV through a shared folder: vLLM's ExampleConnector, made safe to serve with. On PYTHONPATH of engines that use it.

The example of vLLM 0.32 looks for a prompt under another number of blocks than it stores it under, and takes a half-written
folder for whole; either kills the engine (a prompt of one token is enough). Here both use the whole blocks of all but the
last token, files appear whole, a folder counts once its marker is written, and old folders are swept. What it cannot do:
engines of several ranks (they would write the same files) and prompts computed in chunks; the driver refuses the one and
switches the other off. A prompt's cache_salt is not part of its name.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import ExampleConnector

MARKER = "complete"
KEEP_S = 600.0
SWEEP_EVERY_S = 60.0


class FolderConnector(ExampleConnector):  # type: ignore[misc]  # vllm is not there when types are checked
    """One folder per prompt under the shared path, with one file per layer."""

    _writing = False
    _swept_at = 0.0

    # --- In the scheduler: what can be loaded, what must be stored

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Tokens that can be loaded beyond the computed ones. A request that was preempted while it answered computes all
        again: what is stored is its prompt alone."""
        tokens = list(request.prompt_token_ids or [])
        whole = self._whole(len(tokens))
        if request.num_output_tokens or whole <= num_computed_tokens or not self._stored(tokens, self._images(request)):
            return 0, False
        return whole - num_computed_tokens, False

    def _found_match_for_prompt(self, prompt_token_ids: list[int], mm_hashes: list[str]) -> bool:
        """Whether there is nothing to store."""
        return self._whole(len(prompt_token_ids)) == 0 or self._stored(prompt_token_ids, mm_hashes)

    def _stored(self, tokens: list[int], mm_hashes: list[str]) -> bool:
        marker = Path(self._folder(torch.tensor(tokens)[: self._whole(len(tokens))], mm_hashes)) / MARKER
        try:
            os.utime(marker)  # what is about to be loaded must not be swept
        except OSError:
            return False
        return True

    def _whole(self, tokens: int) -> int:
        """Tokens in whole blocks, the last one left out: an engine must compute at least that."""
        block: int = self._block_size
        return max(0, tokens - 1) // block * block

    def _images(self, request: Any) -> list[str]:
        return [feature.identifier for feature in request.mm_features]

    # --- In the worker: files

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        self._writing = True
        try:
            super().save_kv_layer(layer_name, kv_layer, attn_metadata, **kwargs)
        finally:
            self._writing = False
        stored = [request for request in self._get_connector_metadata().requests if request.is_store]
        # As a set: the same prompt may be there twice.
        for file in {self._generate_filename_debug(layer_name, each.token_ids, each.mm_hashes) for each in stored}:
            os.replace(_unfinished(file), file)

    def _generate_filename_debug(self, layer_name: str, token_ids: Any, mm_hashes: list[str]) -> str:
        file: str = super()._generate_filename_debug(layer_name, token_ids, mm_hashes)
        return _unfinished(file) if self._writing else file

    def wait_for_save(self) -> None:
        """All layers of the step are written: its prompts count as stored."""
        stored = [request for request in self._get_connector_metadata().requests if request.is_store]
        for request in stored:
            (Path(self._folder(request.token_ids, request.mm_hashes)) / MARKER).touch()
        if stored and time.monotonic() - self._swept_at > SWEEP_EVERY_S:
            self._swept_at = time.monotonic()
            _sweep(Path(self._storage_path))

    def _folder(self, token_ids: Any, mm_hashes: list[str]) -> str:
        folder: str = self._generate_foldername_debug(token_ids, mm_hashes, create_folder=False)
        return folder


def _unfinished(file: str) -> str:
    return f"{file}.{os.getpid()}"


def _sweep(shared: Path) -> None:
    """Removes prompts that nobody asked for lately, and what killed engines left half-written."""
    for folder in shared.iterdir():
        marker = folder / MARKER
        try:
            used = (marker if marker.exists() else folder).stat().st_mtime
        except FileNotFoundError:
            continue
        if time.time() - used > KEEP_S:
            marker.unlink(missing_ok=True)  # first of all: from here on nobody starts to load it
            shutil.rmtree(folder, ignore_errors=True)
