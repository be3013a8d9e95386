#!/usr/bin/env bash
# Benchmarks on one large GPU, the most important question first, each with a time limit of its own:
#
#     benchmarks/gpu.sh [--tiny] [--only decode,step,...] [--into FOLDER] [--minutes 8.75]
#
# All tables go into one JSON file and one Markdown page in FOLDER (benchmarks/results), named after the device and the
# date; --only replaces part of what the file has. A question that fails or takes too long is recorded as such, the
# others go on, and the command exits with 1. --tiny rehearses everything on a CPU with tiny shapes, and needs --into.
#
# PYTHON names a Python with a CUDA build of JAX; without it the project's own is taken, or python3. The original EAGLE
# runs where EAGLE_CHECKOUT names a checkout, with EAGLE_PYTHON and EAGLE_PACKAGES as --python and --packages of
# benchmarks.peers.against_peers.
set -uo pipefail
usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }
fail() { echo "$1" >&2 && exit "${2:-2}"; }
tiny="" only="" into="" minutes=8.75
names=,ops,speedup,batch,decode,int4,tests,step,draft8,kernels,attention,large,graphs,peers,eagle,
while [ $# -gt 0 ]; do
  case $1 in
    --tiny) tiny=1 ;;
    --only) only=${2:?} && shift ;;
    --into) into=$(realpath -m "${2:?}") && shift ;;
    --minutes) minutes=${2:?} && shift ;;
    -h | --help) usage && exit ;;
    *) fail "unknown option $1; see --help" ;;
  esac
  shift
done
for name in ${only//,/ }; do
  [[ $names == *",$name,"* ]] || fail "there is no question $name; expected some of ${names//,/ }"
done
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
if [ -z "${PYTHON:-}" ]; then PYTHON=$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3); fi
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
# Programs, and XLA's choice of kernels, are kept for the next command; nothing that the user has tuned plays a part.
cache=${XDG_CACHE_HOME:-$HOME/.cache}/eagle_jax/benchmarks scratch=$(mktemp -d) && trap 'rm -rf "$scratch"' EXIT
export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-$cache}" XDG_CACHE_HOME="$scratch"
flags=${XLA_FLAGS:-}
if [ -n "$tiny" ]; then
  [ -n "$into" ] || fail "--tiny writes nothing into benchmarks/results; say with --into where its results go"
  export JAX_PLATFORMS=cpu XLA_FLAGS="$flags --xla_backend_optimization_level=0" JAX_COMPILATION_CACHE_DIR="$scratch"
fi
page=$("$PYTHON" -m benchmarks.gpu.collect begin "${into:-benchmarks/results}" ${tiny:+--tiny}) || exit 1
end=$(awk "BEGIN { print int($(date +%s) + 60 * $minutes) }") bad=""

# ask NAME LIMIT [VARIABLE=VALUE...] COMMAND...: one question, and how many seconds it may take
ask() {
  local name=$1 limit=$2 state start log="$scratch/$1.log" tables="$scratch/$1.jsonl"
  shift 2
  [[ ",${only:-$name}," == *",$name,"* ]] || return 0
  start=$(date +%s)
  [ -z "$tiny" ] && [ "$limit" -lt $((end - start)) ] || limit=$((end - start)) # a rehearsal may be on a busy machine
  if [ "$limit" -lt 15 ]; then
    state="left out: no time was left; --only $name"
  else
    BENCHMARK_TABLES=$tables timeout --kill-after 5 "$limit" env "$@" >"$log" 2>&1
    case $? in
      0) state="done" ;;
      124 | 137) state="stopped after $limit s" bad="$bad $name" ;;
      *) state="failed: $(tail -n 1 "$log")" bad="$bad $name" ;;
    esac
  fi
  echo "$name: $state ($(($(date +%s) - start)) s)"
  "$PYTHON" -m benchmarks.gpu.collect add "$page" "$name" "$state" "$tables"
}

run="$PYTHON -m benchmarks" sizes=8b shape="8b --prompt 128" tree=60,7,10 speed="--new-tokens 320 --repeats 4"
nodes=1,16,60,256,1024 batches="1 4 16 64" copied=4294967296 suite="" graph=--xla_gpu_enable_command_buffer=+WHILE
large="70b --prompt 128 --new-tokens 128" peer="--shape 8b --weights bfloat16 --repeats 2"
if [ -n "$tiny" ]; then
  sizes="tiny --dtype float32" shape="$sizes --prompt 8" tree=8,2,2 nodes=1,4 speed="--new-tokens 24 --repeats 1" batches="1 2"
  copied=1048576 suite=--collect-only graph="" large="$shape"
  peer="--shape small --limit 1 --repeats 1 --new-tokens 24"
fi
step="$run.decode.step nodes --shape $shape $speed --tree $tree" speedup="$run.decode.speedup --shape $shape $speed"
# where PyTorch works on the same GPU, JAX must not take its memory beforehand
peers="XLA_PYTHON_CLIENT_PREALLOCATE=false $run.peers.against_peers $peer"
original="--no-hf --python ${EAGLE_PYTHON:-$PYTHON} ${EAGLE_PACKAGES:+--packages $EAGLE_PACKAGES}"
# shellcheck disable=SC2086  # these are lists of words
{
  ask ops 40 $run.kernels.choices --shape $sizes
  ask speedup 125 $speedup --trees auto $tree
  ask batch 115 $speedup --prompts 1 --batches $batches --trees auto
  ask decode 95 $run.decode.step weights --shape $shape $speed --copied $copied
  ask int4 50 EAGLE_JAX_OPS=linear:gpu $run.decode.step weights --shape $shape $speed --copied $copied --weights int4
  ask tests 95 XLA_FLAGS="$flags --xla_backend_optimization_level=3" $PYTHON -m pytest -q $suite -o addopts= \
    -W ignore::DeprecationWarning tests/ops/test_on_gpu.py tests/ops/test_int4_gpu.py tests/benchmarks/common
  ask step 150 $step --nodes $nodes
  ask draft8 80 $step --nodes 1 --quantize draft:int8
  ask kernels 80 $run.kernels.ops attention
  ask attention 80 EAGLE_JAX_OPS=tree_attention:gpu $speedup --trees $tree
  ask large 200 $run.decode.speedup --shape $large --quantize int4 --prompts 1 --trees $tree
  ask graphs 110 XLA_FLAGS="${XLA_FLAGS:-} $graph" $step --nodes 1
  if "$PYTHON" -c "import torch" 2>/dev/null; then ask peers 90 $peers; fi
  if [ -n "${EAGLE_CHECKOUT:-}" ]; then ask eagle 150 $peers $original --eagle "$EAGLE_CHECKOUT"; fi
}
echo "$page ${page%.json}.md"
[ -z "$bad" ] || fail "not to the end:$bad; the reasons are in $page" 1
