#!/usr/bin/env bash
# A batch job on one host with 8 GPUs: README.md beside it has the steps.
#   HOST     [user@]name of a machine that is there already; without it, one of Google Cloud:
#   NAME     of the machine      MACHINE  its type, a3-highgpu-8g has eight H100 of 80 GB
#   ZONE     where it is         SPOT     1 for a machine that may be taken away at any time
#   DRY_RUN=1 says what would be done
# shellcheck source=examples/job.sh
source "$(dirname "${BASH_SOURCE[0]}")/../job.sh"

NAME=${NAME:-eagle} MACHINE=${MACHINE:-a3-highgpu-8g} ZONE=${ZONE:-us-central1-a} EXTRA=cuda HOSTS=1
IMAGE=${IMAGE:-common-cu129-ubuntu-2204-nvidia-580} # a family of deeplearning-platform-release with CUDA 13's driver
GCLOUD=(gcloud compute)

create() {
  run "${GCLOUD[@]}" instances create "$NAME" --zone="$ZONE" --machine-type="$MACHINE" \
    --image-project=deeplearning-platform-release --image-family="$IMAGE" --boot-disk-size=500GB \
    --maintenance-policy=TERMINATE ${SPOT:+--provisioning-model=SPOT}
}

delete() { run "${GCLOUD[@]}" instances delete "$NAME" --zone="$ZONE" --quiet; }

on_all() { run "${GCLOUD[@]}" ssh "$NAME" --zone="$ZONE" --command="$1"; }
to_all() { run "${GCLOUD[@]}" scp "$1" "$NAME:$2/" --zone="$ZONE"; }
from_host() { run "${GCLOUD[@]}" scp "$NAME:$2" "$3" --zone="$ZONE"; }
meet() { :; }

if [[ -n ${HOST:-} ]]; then
  create() { echo "$HOST is there already"; }
  delete() { echo "$HOST is not ours to delete"; }
  on_all() { run ssh "$HOST" "$1"; }
  to_all() { run scp "$1" "$HOST:$2/"; }
  from_host() { run scp "$HOST:$2" "$3"; }
fi

main "$@"
