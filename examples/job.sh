# What tpu_vm/tpu.sh and gpu/gpu.sh have in common: how a batch job gets onto its hosts, runs there and comes back.
# They set EXTRA (the package's extra) and HOSTS, and define create, delete, on_all COMMAND, to_all FILE FOLDER,
# from_host NUMBER FILES FOLDER and meet (the options by which the hosts find each other).
# shellcheck shell=bash
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
EAGLE=../eagle/venv/bin/eagle-jax # seen from the folder `job` of a host

# Says what it does and does it, or only says it (DRY_RUN=1).
run() {
  printf '+'
  printf ' %q' "$@"
  printf '\n'
  [[ -n ${DRY_RUN:-} ]] || "$@"
}

quoted() { printf '%q ' "$@"; }

# Installs this checkout's last commit on every host, in an environment of its own.
setup() {
  local code=${TMPDIR:-/tmp}/eagle_jax.tar.gz
  run git -C "$ROOT" archive --format=tar.gz --output="$code" HEAD
  on_all "mkdir -p eagle/code job"
  to_all "$code" eagle
  on_all "tar -xzf eagle/eagle_jax.tar.gz -C eagle/code &&
    curl -LsSf https://astral.sh/uv/install.sh | sh &&
    .local/bin/uv venv --allow-existing --python 3.12 eagle/venv &&
    .local/bin/uv pip install --python eagle/venv/bin/python --torch-backend cpu \"eagle-jax[$EXTRA,torch] @ file://\$HOME/eagle/code\""
}

send() {
  for file in "$@"; do to_all "$file" job; done
}

# `eagle-jax batch` with these arguments on every host, in the background; the same again goes on after a kill. Not beside
# one that is still at work, whose number would be lost; images for GPUs often have no `ps`.
start() {
  on_all "cd job && if { tr '\\0' ' ' < \"/proc/\$(cat job.pid)/cmdline\" || ps -o args= -p \"\$(cat job.pid)\"; } 2> /dev/null | grep -q 'eagle-jax batch'; then
      echo \"a job is at work here, process \$(cat job.pid); await or stop it first\" >&2; exit 1
    fi && { nohup $EAGLE batch $(quoted "$@")$(meet) >> job.log 2>&1 < /dev/null & echo \$! > job.pid; }"
}

status() { on_all "tail -n 2 job/job.log"; }
await() { on_all "tail --pid=\$(cat job/job.pid) -n 1 -f job/job.log"; }
stop() { on_all "kill \$(cat job/job.pid)"; }

# Brings the output here: it, or the parts of all hosts, which are then merged.
collect() {
  local output=$1 folder
  folder=$(dirname "$output")
  run mkdir -p "$folder"
  for ((host = 0; host < HOSTS; host++)); do
    from_host "$host" "job/$(basename "$output")*" "$folder" || echo "host $host has nothing of it"
  done
  if [[ -n ${DRY_RUN:-} || ! -e $output ]]; then run eagle-jax batch --merge "$output"; fi
}

main() {
  local known="create setup send start status await stop collect on delete"
  if [[ $# -eq 0 || " $known " != *" $1 "* ]]; then
    echo "usage: $0 {${known// /|}} ...; README.md beside it tells more" >&2
    exit 2
  fi
  local command=$1
  shift
  case $command in
    on) on_all "$*" ;;
    collect) collect "${1:?the output, as it was given to start}" ;;
    *) "$command" "$@" ;;
  esac
}
