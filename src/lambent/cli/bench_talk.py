"""`lambent bench smollm2`: tokens a second of a language model, ours and the peers' in alternation.

All read the same GGUF file and use as many threads. What the weights mean is said by PyTorch: the
model in float32 arithmetic on the dequantised weights, whose scores ours must equal.
"""

from __future__ import annotations

import json as json_form
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from lambent.backends.measuring.turns import alternate
from lambent.cli.bench import Settings
from lambent.cli.errors import choose, need
from lambent.cli.output import console, number, print_json, say, table

if TYPE_CHECKING:
    from lambent.frontends.language import LanguageModel
    from lambent.text.generate import Session

Array = np.ndarray[Any, Any]
PEERS = {"torch": "transformers", "llama.cpp": "llama_cpp"}
"""Names for `--against` and the module that each needs."""
INSTALL = {"torch": "torch transformers", "llama.cpp": "'lambent[llama]'"}
POSITIONS, PREFILL = (32, 50, 512, 1000), 512
CHECKED, TOLERANCE = 52, 1e-3
"""Tokens of the text whose scores are compared; the largest difference of a score."""
SECONDS = 6.0
"""How long one line is timed."""


@dataclass(frozen=True, slots=True)
class Engine:
    """What runs a model. `feed`: new tokens behind the first `past` ones; scores of the last."""

    feed: Callable[[int, Sequence[int]], Array]


def bench(model: str, settings: Settings, json: bool, save: Path | None) -> None:
    """Print tokens a second at several positions, and of a prompt.

    Raises:
        UserError: an unknown peer, or its library is not installed.
        typer.Exit: with code 1 when a score is wrong.
    """
    from lambent.backends.cpu.features import threads as all_threads
    from lambent.cli import talk

    for name in settings.against:
        need(PEERS[choose("peer", name, PEERS)], INSTALL[name], f"--against {name}")
    count = settings.threads or all_threads()
    session = talk.open_session(model, settings.budget, settings.device, fresh=False)
    engines = {"lambent": ours(session)} | _peers(session.model, settings.against, count)
    ids = _text(session, max(*POSITIONS, PREFILL) + 1)
    wrong = _errors(engines, ids[:CHECKED])
    steps = zip((0, *POSITIONS), POSITIONS, strict=False)
    rows = [*(_decode(engines, ids, past, at) for past, at in steps), _prefill(engines, ids)]
    told: dict[str, Any] = {
        "model": str(session.model.path), "device": settings.device, "threads": count,
        "compiled": int(session.compiled), "checked_tokens": CHECKED, "tolerance": TOLERANCE,
        "error": wrong.get("lambent"), "peers_error": wrong,
        "rows": rows,
    }  # fmt: skip
    rates = {row["work"]: row["tokens_per_second"]["lambent"] for row in rows}
    told["time_at_1000_over_50"] = rates["decode at 50"] / rates["decode at 1000"]
    if save:
        save.write_text(json_form.dumps(told, indent=1))
    if json:
        print_json(told)
    else:
        _show(told)
    if "torch" in engines and not wrong["lambent"] <= TOLERANCE:
        say(f"lambent: wrong result: scores differ by {wrong['lambent']:.1e}")
        raise typer.Exit(1)


def _text(session: Session, tokens: int) -> list[int]:
    """So many tokens of plain text."""
    words = "The river flows past the old town, and in the evening people walk along its banks. "
    ids = session.text.encode(words * (tokens // 10))
    return ids[:tokens]


# ---- rows ------------------------------------------------------------------------------------


def _decode(engines: Mapping[str, Engine], ids: list[int], past: int, at: int) -> dict[str, Any]:
    """One token behind `at` others, of which `past` are known."""
    for engine in engines.values():
        engine.feed(past, ids[past:at])
    return _row(f"decode at {at}", engines, at, ids[at : at + 1])


def _prefill(engines: Mapping[str, Engine], ids: list[int]) -> dict[str, Any]:
    return _row(f"prefill of {PREFILL}", engines, 0, ids[:PREFILL])


def _row(work: str, engines: Mapping[str, Engine], past: int, new: list[int]) -> dict[str, Any]:
    def run(engine: Engine) -> Callable[[], Any]:
        return lambda: engine.feed(past, new)

    times = alternate({name: run(e) for name, e in engines.items()}, SECONDS, (3, 60))
    rates = {name: len(new) / seconds for name, seconds in times.items()}
    ratios = {name: rates["lambent"] / rate for name, rate in rates.items() if name != "lambent"}
    return {"work": work, "tokens_per_second": rates, "ratio": ratios}


def _errors(engines: Mapping[str, Engine], ids: list[int]) -> dict[str, float]:
    """The largest difference of a score from float32 arithmetic; nothing without PyTorch.

    Of every engine behind the whole text, and of ours also token by token.
    """
    if "torch" not in engines:
        say("scores are not checked: that needs --against torch")
        return {}
    want = engines["torch"].feed(0, ids)
    found = {n: float(np.abs(e.feed(0, ids) - want).max()) for n, e in engines.items()}
    for at, token in enumerate(ids):
        last = engines["lambent"].feed(at, [token])
    found["lambent"] = max(found["lambent"], float(np.abs(last - want).max()))
    return found


# ---- engines ---------------------------------------------------------------------------------


def ours(session: Session) -> Engine:
    def feed(past: int, new: Sequence[int]) -> Array:
        session.ids = session.ids[:past]
        return session.feed(new)

    return Engine(feed)


def _peers(model: LanguageModel, names: Sequence[str], threads: int) -> dict[str, Engine]:
    found: dict[str, Engine] = {}
    if "torch" in names:
        import torch

        torch.set_num_threads(threads)
        state = torch_state(model)
        found |= {
            "torch": torch_engine(model, state, torch.float32),
            "torch, bfloat16": torch_engine(model, state, torch.bfloat16),
        }
    if "llama.cpp" in names:
        found["llama.cpp"] = llama_engine(model.path, threads)
    return found


NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def torch_state(model: LanguageModel) -> dict[str, Any]:
    """The dequantised weights by the names of transformers."""
    import torch

    state = {}
    for name, whole in model.weights.items():
        *block, part, _ = name.split(".")
        theirs = f"model.layers.{block[1]}.{NAMES[part]}" if block else WHOLE[part]
        values = np.asarray(whole.values(whole.parts), np.float32)
        state[f"{theirs}.weight"] = torch.from_numpy(values)
    return state


def torch_model(model: LanguageModel, state: dict[str, Any], dtype: Any, **more: Any) -> Any:
    """The model as transformers has it; `more` goes to its configuration."""
    from transformers import LlamaConfig, LlamaForCausalLM

    c = model.config
    assert c.rotary is not None
    config = LlamaConfig(
        vocab_size=c.vocabulary, hidden_size=c.hidden, intermediate_size=c.intermediate,
        num_hidden_layers=c.layers, num_attention_heads=c.heads, num_key_value_heads=c.kv_heads,
        head_dim=c.head_dim, max_position_embeddings=c.context, rms_norm_eps=c.eps,
        rope_theta=c.rotary.base, tie_word_embeddings="lm_head.weight" not in state, **more,
    )  # fmt: skip
    net = LlamaForCausalLM(config).to(dtype).eval()
    missing, unknown = net.load_state_dict(state, strict=False)
    assert not unknown and set(missing) <= {"lm_head.weight"}, (missing, unknown)
    return net


def torch_engine(model: LanguageModel, state: dict[str, Any], dtype: Any) -> Engine:
    """The model as transformers runs it, with its cache of keys and values."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    import torch
    from transformers import DynamicCache

    net, cache = torch_model(model, state, dtype), [DynamicCache()]

    def feed(past: int, new: Sequence[int]) -> Array:
        if past == 0:
            cache[0] = DynamicCache()
        if (more := cache[0].get_seq_length() - past) > 0:
            cache[0].crop(-more)
        with torch.no_grad():
            told = net(
                input_ids=torch.tensor([list(new)]), past_key_values=cache[0], use_cache=True,
                logits_to_keep=1,
            )  # fmt: skip
        return np.asarray(told.logits[0, -1].float())

    return Engine(feed)


def llama_engine(path: Path, threads: int) -> Engine:
    """llama.cpp as its Python package runs it."""
    from llama_cpp import Llama

    llama = Llama(
        str(path), n_ctx=2048, n_batch=PREFILL, n_threads=threads, n_threads_batch=threads,
        verbose=False,
    )  # fmt: skip

    def feed(past: int, new: Sequence[int]) -> Array:
        llama.n_tokens = past
        llama.eval(list(new))
        scores: Array = np.ctypeslib.as_array(llama._ctx.get_logits(), (llama.n_vocab(),)).copy()
        return scores

    return Engine(feed)


def _show(told: Mapping[str, Any]) -> None:
    names = list(told["rows"][0]["tokens_per_second"])
    others = [f"lambent / {name}" for name in names[1:]]
    out = table(f"tokens a second, {told['threads']} threads", "work", *names, *others)
    for row in told["rows"]:
        rates, ratios = row["tokens_per_second"], row["ratio"]
        values = [*(rates[n] for n in names), *(ratios[n] for n in names[1:])]
        out.add_row(row["work"], *map(number, values))
    console().print(out)
    if told["error"] is not None:
        say(f"largest difference of a score from float32 arithmetic: {told['error']:.1e}")
    say(f"time a token at position 1000 over that at 50: {told['time_at_1000_over_50']:.2f}")
