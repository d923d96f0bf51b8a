"""llama.cpp with several sequences in a batch, by its own C interface: needs llama-cpp-python and nothing of ours.

Reads one JSON object on stdin ({gguf, float32, threads, concurrent, jobs: [[prompt ids, tokens], …]}), makes a float32
file of the model once, generates greedily with refilled places, prints tokens per second.
"""

import ctypes
import json
import sys
import time
from pathlib import Path
from typing import Any

import llama_cpp  # type: ignore[import-not-found]  # another interpreter's
import numpy as np


def float32_model(source: str, target: str) -> None:
    """llama.cpp's own conversion."""
    if not Path(target).exists():
        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype, params.allow_requantize = llama_cpp.LLAMA_FTYPE_ALL_F32, True
        assert llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)) == 0


def main() -> None:
    """One measurement."""
    asked = json.load(sys.stdin)
    llama_cpp.llama_backend_init()
    float32_model(asked["gguf"], asked["float32"])
    model = llama_cpp.llama_model_load_from_file(asked["float32"].encode(), llama_cpp.llama_model_default_params())
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    places = asked["concurrent"]
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = 512 * places, 2048, 512, places
    params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
    params.n_threads = params.n_threads_batch = asked["threads"]
    params.kv_unified = True
    context = llama_cpp.llama_init_from_model(model, params)
    batch = llama_cpp.llama_batch_init(4096, 0, 1)
    waiting = [list(job) for job in asked["jobs"]]
    running: dict[int, list[Any]] = {}
    total, begin = sum(tokens for _, tokens in waiting), time.perf_counter()
    while waiting or running:
        rows = []
        for place in range(places):
            if place not in running and waiting:
                prompt, tokens = waiting.pop(0)
                llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(context), place, -1, -1)
                running[place] = [0, prompt, tokens]
            if place in running:
                rows.append(place)
        count, ends = 0, {}
        for place in rows:
            position, ids, _ = running[place]
            for number, token in enumerate(ids):
                batch.token[count], batch.pos[count] = token, position + number
                batch.n_seq_id[count], batch.seq_id[count][0] = 1, place
                batch.logits[count] = number == len(ids) - 1
                count += 1
            ends[place] = count - 1
            running[place][0] += len(ids)
        batch.n_tokens = count
        assert llama_cpp.llama_decode(context, batch) == 0
        for place, at in ends.items():
            logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, at), (vocabulary,))
            running[place][1] = [int(logits.argmax())]
            running[place][2] -= 1
            if running[place][2] == 0:
                del running[place]
    print(total / (time.perf_counter() - begin))


if __name__ == "__main__":
    main()
