#!/usr/bin/env bash
# A batch job on a TPU slice of Google Cloud: README.md beside it has the steps.
#   NAME  of the slice        TYPE  v5litepod-8, v5p-16, v6e-16, ...; local-2 rehearses with two processes on this machine
#   ZONE  where it is         SPOT  1 for a slice that may be taken away at any time
#   DRY_RUN=1 says what would be done
# shellcheck source=examples/job.sh
source "$(dirname "${BASH_SOURCE[0]}")/../job.sh"

NAME=${NAME:-eagle} TYPE=${TYPE:-v5litepod-8} ZONE=${ZONE:-us-central1-a} EXTRA=tpu
FOLDER=${FOLDER:-$PWD/rehearsal} PORT=${PORT:-12356} # of a rehearsal

size=${TYPE##*-}
case $TYPE in # what a slice is called: chips, of v5p twice as many; hosts have 8 chips in slices of up to 8, else 4
  v5litepod-*) VERSION=v2-alpha-tpuv5-lite chips=$size one=8 ;;
  v6e-*) VERSION=v2-alpha-tpuv6e chips=$size one=8 ;;
  v5p-*) VERSION=v2-alpha-tpuv5 chips=$((size / 2)) one=4 ;;
  local-*) VERSION='' chips=$((4 * size)) one=4 EAGLE=$(command -v eagle-jax || echo eagle-jax) ;;
  *)
    echo "TYPE=$TYPE is not known; expected v5litepod-N, v5p-N, v6e-N or local-N" >&2
    exit 2
    ;;
esac
HOSTS=$((chips <= one ? 1 : chips / 4))
TPU=(gcloud compute tpus tpu-vm)

create() {
  run "${TPU[@]}" create "$NAME" --zone="$ZONE" --accelerator-type="$TYPE" --version="$VERSION" ${SPOT:+--spot}
}

delete() { run "${TPU[@]}" delete "$NAME" --zone="$ZONE" --quiet; }

on_all() { run "${TPU[@]}" ssh "$NAME" --zone="$ZONE" --worker=all --command="$1"; }
to_all() { run "${TPU[@]}" scp "$1" "$NAME:$2/" --zone="$ZONE" --worker=all; }
from_host() { run "${TPU[@]}" scp "$NAME:$2" "$3" --zone="$ZONE" --worker="$1"; }
meet() { if ((HOSTS > 1)); then echo "--coordinator auto"; fi; }

if [[ $TYPE == local-* ]]; then # folders of this machine for hosts, and everything else as above
  create() { for ((host = 0; host < HOSTS; host++)); do run mkdir -p "$FOLDER/$host/job"; done; }
  delete() { run rm -r "$FOLDER"; }
  setup() { echo "eagle-jax is $EAGLE"; }
  on_all() {
    for ((host = 0; host < HOSTS; host++)); do run env -C "$FOLDER/$host" HOST="$host" bash -c "$1"; done
  }
  to_all() { for ((host = 0; host < HOSTS; host++)); do run cp "$1" "$FOLDER/$host/$2/"; done; }
  from_host() { run bash -c "cp $(printf %q "$FOLDER/$1")/$2 $(printf %q "$3")"; }
  meet() { echo "--coordinator localhost:$PORT --processes $HOSTS --process \$HOST"; }
fi

main "$@"
