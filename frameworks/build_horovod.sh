#!/bin/sh
# Build Horovod 0.28.1 for the torch of a Python environment, install it there, and prove that two ranks can sum.
#
#     sh frameworks/build_horovod.sh [PYTHON]        # PYTHON: .venv/bin/python by default
#
# Its last release, of June 2023, is compiled as C++14, and torch's headers need C++20: two lines are patched. It has no
# wheel for a torch of today, so it is compiled here, with Gloo and without MPI: two to five minutes, once. Where it is
# installed and sums, nothing is done. On Debian and Ubuntu: apt-get install cmake g++ make.
set -eu

VERSION=0.28.1
PYTHON=${1:-.venv/bin/python}
fail() { echo "build_horovod: $*" >&2; exit 1; }

"$PYTHON" -c 'import torch' 2>/dev/null \
  || fail "'$PYTHON' cannot import torch. Run 'make setup' first, or name a Python that has it: sh $0 PYTHON"
PYTHON=$("$PYTHON" -c 'import sys; print(sys.executable)')

proven() {  # two ranks, 1 + 2 = 3
  "$PYTHON" -c 'import horovod.torch' 2>/dev/null || return 1
  PATH="$(dirname "$PYTHON"):$PATH" "$PYTHON" -W ignore -m horovod.runner.launch -np 2 --gloo "$PYTHON" -c '
import torch, horovod.torch as hvd
hvd.init()
total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum).item()
assert (hvd.size(), total) == (2, 3.0), (hvd.size(), total)
print(f"rank {hvd.rank()} of 2: the sum is {total:.0f}", flush=True)
hvd.shutdown()' >"$1" 2>&1 && [ "$(grep -c 'of 2: the sum is 3' "$1")" = 2 ]
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if proven "$work/proof.log"; then
  echo "Horovod is installed, and two ranks sum to 3: nothing to do."
  exit 0
fi

for tool in cmake g++ make; do
  command -v $tool >/dev/null || fail "$tool is missing. On Debian and Ubuntu: apt-get install cmake g++ make"
done
found=$(cmake --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')
case $found in  # a CMake 4 refuses the old projects that Horovod carries in third_party
  3.1[3-9]*|3.[2-9]*) ;;
  *) fail "CMake 3.13 to 3.31 is needed, and $(command -v cmake) is $found: install the system's, and put it first in PATH" ;;
esac

pip() { "$PYTHON" -m pip --quiet --disable-pip-version-check "$@"; }
"$PYTHON" -m pip --version >/dev/null 2>&1 || fail "'$PYTHON' has no pip: $PYTHON -m ensurepip"
pip install setuptools wheel packaging cloudpickle psutil pyyaml \
  || fail "what the build needs could not be installed: connect, or point PIP_INDEX_URL at a mirror"
pip download --no-deps --no-build-isolation --no-binary horovod --dest "$work" "horovod==$VERSION" \
  || fail "the source of Horovod $VERSION could not be downloaded: connect, or point PIP_INDEX_URL at a mirror"
tar -xzf "$work/horovod-$VERSION.tar.gz" -C "$work"
cd "$work/horovod-$VERSION"

for file in CMakeLists.txt horovod/torch/CMakeLists.txt; do
  sed -i.before 's/^\( *set(CMAKE_CXX_STANDARD\) 14)/\1 20)/' "$file"
  [ "$(diff "$file.before" "$file" | grep -c '^>.*CMAKE_CXX_STANDARD 20)')" = 1 ] \
    || fail "$file of Horovod $VERSION does not set C++14 in one line: the patch does not fit"
  rm "$file.before"
done
echo "Two lines are patched. Compiling, which takes a few minutes ..."

HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_TENSORFLOW=1 \
  HOROVOD_WITHOUT_MXNET=1 MAKEFLAGS="${MAKEFLAGS:--j2}" \
  "$PYTHON" -m pip wheel --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$work" . >"$work/build.log" 2>&1 \
  || { grep -n 'error' "$work/build.log" | head -20 >&2; tail -20 "$work/build.log" >&2; fail "the compiler stopped; its last lines stand above"; }
pip install --no-deps --force-reinstall "$work"/horovod-*.whl || fail "the wheel could not be installed"
cd /

proven "$work/proof.log" || { tail -20 "$work/proof.log" >&2; fail "it was built, but two ranks do not sum; what they said stands above"; }
cat "$work/proof.log" | grep 'the sum is'
echo "Horovod $VERSION is installed: horovodrun -np 2 --gloo python your_program.py"
