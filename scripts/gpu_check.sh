#!/bin/bash
# On a machine with an NVIDIA GPU: the tests marked gpu, then the suite of `lambent bench`, one table.
#
#   scripts/gpu_check.sh wheels    where there is a network: fetch into .whl what such a machine lacks
#   scripts/gpu_check.sh           there: about eight minutes; all results also go to $OUT
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

out=${OUT:-/tmp/gpu_check}
mkdir -p "$out"
if [ -d .whl ]; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
    --target /tmp/site .whl/*.whl
fi
export PYTHONPATH=$PWD/src:/tmp/site PYTHONUNBUFFERED=1
export XDG_CACHE_HOME=${XDG_CACHE_HOME:-/tmp/gpu_check_cache}
lambent="python3 -m lambent"

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
python3 -c 'from importlib.metadata import version as v
print({n: v(n) for n in ("torch", "triton", "cuda-bindings", "numpy", "egglog")})'
echo "== tests"
timeout 160 python3 -m pytest -q -m gpu -p no:cacheprovider -o filterwarnings=default \
  tests/backends/cuda --durations=5 >"$out/tests.log" 2>&1
tail -40 "$out/tests.log" | cut -c1-600
echo "== rows and products"
timeout 100 $lambent bench --suite cuda matmul softmax RMSNorm --budget 18 --against "" \
  --save "$out/rows.json" >"$out/rows.txt" 2>"$out/rows.log" || tail -5 "$out/rows.log"
echo "== two reductions and products in one"
timeout 250 $lambent bench --suite cuda attention --budget 40 --against "" \
  --save "$out/attention.json" >"$out/attention.txt" 2>"$out/attention.log" ||
  tail -5 "$out/attention.log"
$lambent devices
cp "$XDG_CACHE_HOME"/lambent/*.db* "$out"/ 2>/dev/null
grep -h "errors" "$out/rows.log" "$out/attention.log" | tail -8
cat "$out/rows.txt" "$out/attention.txt"
