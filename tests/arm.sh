#!/usr/bin/env bash
# Runs Python for 64-bit ARM under emulation (qemu-user), with this checkout and what the tests of the CPU backend need:
#
#     tests/arm.sh CPU ARGUMENTS...      # tests/arm.sh neoverse-n1 -m pytest tests/ops/cpu/test_bits.py
#
# CPU is one of qemu's: cortex-a72 has no dot products, neoverse-n1 has them, max has all that qemu knows. The first
# run downloads Python and qemu from Debian, by apt-get and without root, and wheels from PyPI into build/arm, some 350 MB.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ $# -gt 1 ] || { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 2; }
place=$PWD/build/arm python=3.13

system() { # qemu and the libraries that Python needs, unpacked
  local apt=$place/apt archive
  mkdir -p "$apt"/{lists,archives}/partial "$place"/{host,root}
  echo "deb https://deb.debian.org/debian trixie main" >"$apt/sources.list"
  : >"$apt/status" # nothing is installed
  cat >"$apt/apt.conf" <<CONFIG
APT::Architecture "arm64"; APT::Architectures { "arm64"; "amd64"; };
Dir::Etc::main "none"; Dir::Etc::parts "none"; Dir::Etc::preferences "none"; Dir::Etc::preferencesparts "none";
Dir::Etc::sourcelist "$apt/sources.list"; Dir::Etc::sourceparts "none";
Dir::State "$apt"; Dir::State::status "$apt/status"; Dir::Cache "$apt"; Debug::NoLocking "1";
CONFIG
  export APT_CONFIG=$apt/apt.conf
  apt-get update -qq
  apt-get install -qq -y --no-install-recommends --download-only "python$python" libstdc++6 qemu-user:amd64
  for archive in "$apt"/archives/*.deb; do
    case $archive in *_amd64.deb) dpkg-deb -x "$archive" "$place/host" ;; *) dpkg-deb -x "$archive" "$place/root" ;; esac
  done
  ln -sfn usr/lib "$place/root/lib"
  rm -r "$apt"
}

wheels() { # what pyproject.toml asks for, for ARM
  .venv/bin/python - >"$place/wanted.txt" <<NAMES
import tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
tools = ("beartype", "hypothesis", "llvmlite", "pytest")
print(*project["dependencies"], *(name for name in project["optional-dependencies"]["dev"]
      if name.split(">")[0] in tools), sep="\n")
NAMES
  .venv/bin/python -m pip --disable-pip-version-check install --quiet --target "$place/wheels.part" --no-compile \
    --only-binary=:all: --implementation cp --python-version $python \
    --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux2014_aarch64 \
    --requirement "$place/wanted.txt"
  mv "$place/wheels.part" "$place/wheels"
}

[ -e "$place/root/lib" ] || system
[ -e "$place/wheels" ] || wheels
# A copy for each CPU, since compiled programs of this machine lie in the checkout.
tree=$place/$1
mkdir -p "$tree"
rm -rf "$tree"/{eagle_jax,tests}
cp -r eagle_jax tests pyproject.toml README.md "$tree/"
cd "$tree"
export PYTHONPATH=$tree:$place/wheels JAX_PLATFORMS=cpu XDG_CACHE_HOME=$tree/cache
exec "$place/host/usr/bin/qemu-aarch64" -cpu "$1" -L "$place/root" "$place/root/usr/bin/python$python" "${@:2}"
